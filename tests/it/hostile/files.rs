//! Files: policies, plans, compiled logs, log tables, blocks, recordings, run directories.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use admix::actor::Explorer;
use admix::env::{Block, DayModel, Vocabulary};
use admix::inspect;
use admix::learner::{Device, Learner};
use admix::log::schema::{AdType, InventoryRow};
use admix::log::{CompileOptions, CompiledLog, RawDay, write};
use admix::plan::{DayAhead, Forecast, Plan, hindsight_bound};
use admix::policy::file::PolicyFile;
use admix::policy::start::initial_actor;
use admix::policy::{PolicySpec, ReplayOptions, baselines, replay_day};
use admix::settings::{ScoreMode, Settings};
use admix::shm::{FlightFile, FlightLog};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;

use super::super::compiled::forge;
use super::super::worlds::{Loaded, Size, sized};
use super::Target;
use super::Verdict::{self, Accepted, Refused};

const OPTIONS: ReplayOptions = ReplayOptions { rate_seed: 0, delay: admix::env::Delay::fixed(60.0) };

/// A day of 40 requests and three contracts, with its plan.
struct Sample {
    day: DayModel,
    plan: Plan,
    /// The compiled log, as a file.
    compiled: Vec<u8>,
    /// The files of the log directory.
    tables: Files,
}

/// Files by their path in a folder.
type Files = Vec<(PathBuf, Vec<u8>)>;

/// All files below a folder, but for hidden ones.
fn files_of(root: &Path) -> Files {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root).unwrap().flatten() {
        let name = PathBuf::from(entry.file_name());
        if entry.path().is_dir() && !name.to_string_lossy().starts_with('.') {
            files.extend(files_of(&entry.path()).into_iter().map(|(path, bytes)| (name.join(path), bytes)));
        } else if entry.path().is_file() {
            files.push((name, std::fs::read(entry.path()).unwrap()));
        }
    }
    files
}

fn write_files(root: &Path, files: &[(PathBuf, Vec<u8>)]) {
    for (path, bytes) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

static WORLD: LazyLock<Sample> = LazyLock::new(|| {
    let size = Size { requests: (40..=40).into(), contracts: 3..=3, required: 10 };
    let mut world = sized(size).new_tree(&mut TestRunner::deterministic()).unwrap().current();
    // Every queue starts with an auction ad that may be shown.
    for row in &mut world.rows {
        row.queue[0].ad_type = AdType::Auction;
        row.queue[0].ad_id = 900;
        row.queue[0].filter = 0;
    }
    let Loaded { dir, day, mut plan, .. } = world.load();
    plan.serve(&DayAhead::again(&day.log));
    let compiled = std::fs::read(day.log.path()).unwrap();
    Sample { day, plan, compiled, tables: files_of(dir.path()) }
});

fn day_under(plan: &Plan, vocabulary: &Vocabulary) -> DayModel {
    DayModel::with_forecast(WORLD.day.log.clone(), &plan.forecast, plan, Arc::new(vocabulary.clone()))
}

fn verdict<T>(read: Option<T>, place: &RefCell<Option<T>>) -> Verdict {
    let verdict = if read.is_some() { Accepted } else { Refused };
    *place.borrow_mut() = read;
    verdict
}

/// A file that inputs are written to before they are read.
struct Scratch {
    folder: tempfile::TempDir,
    name: &'static str,
}

impl Scratch {
    fn new(name: &'static str) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), name }
    }

    fn holding(&self, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(self.name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

fn policies() -> Vec<PolicyFile> {
    let vocabulary = Vocabulary::of_days(&[&*WORLD.day.log], true);
    [ScoreMode::Contract, ScoreMode::All]
        .into_iter()
        .map(|score_mode| {
            let mut spec = PolicySpec { score_mode, policy: Default::default(), vocabulary: vocabulary.clone() };
            spec.policy.hidden = 4;
            spec.policy.ad_embedding = 2;
            spec.policy.traffic_embedding = if score_mode == ScoreMode::All { 3 } else { 0 };
            let actor = initial_actor(&spec, 5);
            PolicyFile { spec: Arc::new(spec), plan: WORLD.plan.clone(), actor, updates: 7 }
        })
        .collect()
}

#[test]
fn policy_files() {
    let scratch = Scratch::new("p.safetensors");
    let last = RefCell::new(None);
    Target {
        name: "policy",
        seeds: policies().iter().map(|p| p.encode().unwrap()).collect(),
        most: (1 << 20, 64),
        one_in: 1,
        forge: |_| {},
        read: &mut |bytes| verdict(PolicyFile::read(&scratch.holding(bytes)).ok(), &last),
        used: &mut || {
            let file: PolicyFile = last.take().unwrap();
            let bytes = file.encode().unwrap();
            let again = PolicyFile::read(&scratch.holding(&bytes)).unwrap();
            assert!(again.encode().unwrap() == bytes, "what was accepted does not come back equal");
            let day = day_under(&file.plan, &file.spec.vocabulary);
            replay_day(&day, &mut file.policy(), OPTIONS, &mut |_| {});
        },
    }
    .run();
}

#[test]
fn plan_files() {
    let scratch = Scratch::new("plan.json");
    let last = RefCell::new(None);
    Target {
        name: "plan",
        seeds: vec![WORLD.plan.to_json()],
        most: (1 << 20, 32),
        one_in: 1,
        forge: |_| {},
        read: &mut |bytes| verdict(Plan::read(&scratch.holding(bytes)).ok(), &last),
        used: &mut || {
            let plan: Plan = last.take().unwrap();
            assert_eq!(Plan::read(&scratch.holding(&plan.to_json())).unwrap(), plan);
            let day = day_under(&plan, &Vocabulary::default());
            for name in baselines::NAMES {
                if let Ok(mut policy) = baselines::named(name, Some(&plan)) {
                    replay_day(&day, &mut *policy, OPTIONS, &mut |_| {});
                }
            }
        },
    }
    .run();
}

/// Reads everything of a compiled log, and replays it.
fn use_log(log: CompiledLog) {
    for r in log.requests() {
        let _ = (log.entries(&r).to_vec(), log.auctions(&r).to_vec());
    }
    hindsight_bound(&log, 0);
    let plan = Plan::from_days(&[&log], 0).unwrap();
    let vocabulary = Arc::new(Vocabulary::of_days(&[&log], true));
    let day = DayModel::with_forecast(log, &WORLD.plan.forecast, &plan, vocabulary);
    for policy in policies() {
        replay_day(&day, &mut policy.policy(), OPTIONS, &mut |_| {});
    }
    replay_day(&day, &mut baselines::ContractFirst, OPTIONS, &mut |_| {});
}

#[test]
fn compiled_logs() {
    let scratch = Scratch::new("compiled.log");
    let last = RefCell::new(None);
    Target {
        name: "compiled",
        seeds: vec![WORLD.compiled.clone()],
        most: (1 << 16, 16),
        one_in: 1,
        forge: |bytes| {
            if bytes.len() >= 120 {
                forge(bytes);
            }
        },
        read: &mut |bytes| verdict(CompiledLog::open(&scratch.holding(bytes)).ok(), &last),
        used: &mut || use_log(last.take().unwrap()),
    }
    .run();
}

/// One of the tables of a log directory; the others are sound.
fn table(name: &'static str, file: &str) {
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path(), &WORLD.tables);
    let node = |node_id, region| InventoryRow {
        node_id,
        slot_id: 1,
        region,
        gender: 1,
        age: 2,
        pv: 10.5,
        curve: vec![1.0 / 24.0; 24],
        ad_ids: vec![15, 25],
    };
    write::inventory(&folder.path().join("inventory.tsv"), &[node(1, 2), node(2, 3)]).unwrap();
    let path = folder.path().join(file);
    let options = CompileOptions { max_bad_share: 0.5, ..CompileOptions::default() };
    let dir = folder.path();
    Target {
        name,
        seeds: vec![std::fs::read(&path).unwrap()],
        // Readers have buffers, and hash files by the mebibyte.
        most: (8 << 20, 64),
        one_in: 2,
        forge: |_| {},
        read: &mut |bytes| {
            std::fs::write(&path, bytes).unwrap();
            match (RawDay::read(dir, options), Forecast::of_directory(dir)) {
                (Ok(_), Ok(_)) => Accepted,
                _ => Refused,
            }
        },
        used: &mut || {
            let log = admix::log::open(dir, options).unwrap();
            let Ok(Some(forecast)) = Forecast::of_directory(dir) else { panic!("it was there") };
            DayModel::with_forecast(log, &forecast, &WORLD.plan, Arc::default());
            use_log(admix::log::open(dir, options).unwrap());
        },
    }
    .run();
}

#[test]
fn track_logs() {
    table("track_log", "track_log.tsv");
}

#[test]
fn control_tables() {
    table("control", "control.tsv");
}

#[test]
fn inventories() {
    table("inventory", "inventory.tsv");
}

#[test]
fn day_files() {
    table("day", "day.toml");
}

/// Bytes that reading a Parquet file may hold: a page and a dictionary unpacked, and what they are decoded into.
const PARQUET_BYTES: usize = 384 << 20;

/// A track log in another form than plain text; `name` says of the bytes what the file is called, `write` how they get
/// there.
fn stored_track_log(
    target: &'static str,
    seeds: Vec<Vec<u8>>,
    most: (usize, usize),
    one_in: u64,
    name: fn(&[u8]) -> &'static str,
    write: fn(&Path, &[u8]),
) {
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path(), &WORLD.tables);
    std::fs::remove_file(folder.path().join("track_log.tsv")).unwrap();
    let options = CompileOptions { max_bad_share: 0.5, ..CompileOptions::default() };
    let dir = folder.path();
    Target {
        name: target,
        seeds,
        most,
        one_in,
        forge: |_| {},
        read: &mut |bytes| {
            let path = dir.join(name(bytes));
            write(&path, bytes);
            let read = RawDay::read(dir, options);
            std::fs::remove_file(path).unwrap();
            match read {
                Ok(_) => Accepted,
                Err(e) => {
                    let text = e.to_string();
                    assert!(text.contains(dir.to_str().unwrap()) && !text.chars().any(char::is_control), "{text:?}");
                    Refused
                }
            }
        },
        used: &mut || {},
    }
    .run();
}

fn plain(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

/// The text of the world's track log.
fn track_text() -> &'static [u8] {
    let table = WORLD.tables.iter().find(|(path, _)| path == Path::new("track_log.tsv"));
    &table.expect("it was written").1
}

#[test]
fn parquet_track_logs() {
    let text = std::str::from_utf8(track_text()).unwrap();
    let scratch = Scratch::new("t.parquet");
    let path = scratch.holding(b"");
    let seeds = crate::tables::forms().into_iter().map(|form| {
        crate::tables::write_parquet(&path, &crate::tables::rows_of(text), form);
        std::fs::read(&path).unwrap()
    });
    stored_track_log("parquet", seeds.collect(), (PARQUET_BYTES, 64), 2, |_| "track_log.parquet", plain);
}

/// By what they begin with.
fn archive_name(bytes: &[u8]) -> &'static str {
    match bytes {
        [0x28, 0xb5, ..] if bytes.len().is_multiple_of(2) => "track_log.tsv.zst",
        [0x28, 0xb5, ..] => "track_log.csv.zst",
        _ if bytes.len().is_multiple_of(2) => "track_log.tsv.gz",
        _ => "track_log.jsonl.gz",
    }
}

#[test]
fn archives_of_track_logs() {
    let text = track_text();
    let zeros = [text, &vec![0; 6 << 20]].concat();
    let gzip = |text: &[u8]| {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut out, text).unwrap();
        out.finish().unwrap()
    };
    // An archive of odd length is called otherwise; bytes after its end are none of its.
    let even = |mut bytes: Vec<u8>| {
        if !bytes.len().is_multiple_of(2) {
            bytes = [&bytes[..], &zstd::encode_all(&b""[..], 0).unwrap()].concat();
        }
        bytes
    };
    let seeds: Vec<Vec<u8>> = [text, &zeros]
        .into_iter()
        .flat_map(|text| [gzip(text), even(zstd::encode_all(text, 3).unwrap())])
        .filter(|bytes| bytes.len().is_multiple_of(2))
        .collect();
    // A row, its cells, the reader's buffers.
    stored_track_log("archive", seeds, (32 << 20, 64), 4, archive_name, plain);
}

#[test]
fn sparse_track_logs() {
    let text = track_text();
    // The first half, a hole of 64 MiB, and the rest.
    let write = |path: &Path, bytes: &[u8]| {
        use std::os::unix::fs::FileExt as _;
        let file = std::fs::File::create(path).unwrap();
        let half = bytes.len() / 2;
        file.write_all_at(&bytes[..half], 0).unwrap();
        file.write_all_at(&bytes[half..], (64 << 20) + half as u64).unwrap();
    };
    stored_track_log("sparse", vec![text.to_vec()], (32 << 20, 64), 100, |_| "track_log.tsv", write);
}

/// Settings under which 40 requests make blocks.
fn small_settings() -> Settings {
    let mut settings = Settings::default();
    settings.data.train = vec!["day".into()];
    settings.data.validation = settings.data.train.clone();
    settings.env.feedback_delay_s = 600.0;
    settings.policy.hidden = 4;
    settings.learner.critic_hidden = 4;
    settings.learner.quantiles = 4;
    settings.learner.segment = 4;
    settings.learner.batch = 8;
    settings.learner.pool = 16;
    settings.actors.write_every = 16;
    settings.actors.episodes = 2;
    settings.episodes.requests_per_step = 2;
    settings
}

#[test]
fn blocks_of_samples() {
    let settings = small_settings();
    settings.validate().unwrap();
    let days = [day_under(&WORLD.plan, &WORLD.day.vocabulary)];
    let vocabulary = (*WORLD.day.vocabulary).clone();
    let spec = Arc::new(PolicySpec { score_mode: settings.score_mode, policy: settings.policy.clone(), vocabulary });
    let actor = initial_actor(&spec, 1);
    let mut explorer = Explorer::new(&days, &settings, spec.clone(), actor, 0, 0);
    let encode = |block: &Block| {
        let mut bytes = vec![0; 1 << 20];
        let len = block.encode(&mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    };
    let seeds: Vec<Vec<u8>> = (0..4).map(|_| encode(&explorer.block())).collect();
    let trainer = Device::Cpu.trainer(&days, &spec, &settings).unwrap();
    let learner = RefCell::new(Learner::new(&days, spec.clone(), &settings, trainer));
    let last = RefCell::new(None);
    let taken = std::cell::Cell::new(0);
    let whole = Target {
        name: "block",
        seeds,
        // serde reserves a mebibyte at most ahead of what it has read, in each of two nested lists.
        most: (4 << 20, 32),
        one_in: 1,
        forge: |_| {},
        read: &mut |bytes| verdict(Block::decode(bytes).ok(), &last),
        used: &mut || {
            let block: Block = last.take().unwrap();
            let bytes = encode(&block);
            // Not every number equals itself; its bytes do.
            assert_eq!(encode(&Block::decode(&bytes).unwrap()), bytes);
            let mut learner = learner.borrow_mut();
            if learner.ingest(block.segments).is_ok() && learner.ready() {
                learner.batch();
                taken.set(taken.get() + 1);
            }
        },
    }
    .run();
    assert!(!whole || taken.get() > 0, "no block came as far as a batch");
}

fn recording() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("main.bin");
    let file = FlightFile::open(&path).unwrap();
    for i in 0..300 {
        file.record(i % 11, [i.into(), u64::MAX, 1 << 62], "what happened");
    }
    std::fs::read(&path).unwrap()
}

#[test]
fn flight_recordings() {
    let scratch = Scratch::new("actor0.bin");
    Target {
        name: "flight",
        seeds: vec![recording()],
        most: (1 << 18, 8),
        one_in: 1,
        forge: |_| {},
        read: &mut |bytes| match FlightLog::read(&scratch.holding(bytes)) {
            Ok(log) => {
                assert!(log.records.is_sorted_by_key(|r| r.seq));
                Accepted
            }
            Err(_) => Refused,
        },
        used: &mut || {
            let path = scratch.folder.path().join(scratch.name);
            admix::run::flight::read(&path, 10).unwrap();
            FlightFile::open(&path).unwrap().record(1, [1; 3], "the next process");
            let log = FlightLog::read(&path).unwrap();
            assert!(log.records.iter().any(|r| r.text == "the next process"));
        },
    }
    .run();
}

/// A run directory as training leaves it: a recorded one, so that mutants are the same on every machine.
static RUN: LazyLock<Files> = LazyLock::new(|| {
    let mut files = files_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/run-directory"));
    files.push(("flight/main.bin".into(), recording()));
    files.push(("lock".into(), vec![]));
    files
});

/// One file of a run directory under `inspect` and whoever else reads it.
fn run_file(name: &'static str, file: &str, sound: fn(&Path, &inspect::Inspection) -> bool) {
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path(), &RUN);
    let path = folder.path().join(file);
    let last = RefCell::new(None);
    Target {
        name,
        seeds: vec![std::fs::read(&path).unwrap()],
        most: (2 << 20, 64),
        one_in: 2,
        forge: |_| {},
        read: &mut |bytes| {
            std::fs::write(&path, bytes).unwrap();
            let seen = inspect::inspect(folder.path(), 10).unwrap();
            let verdict = if sound(folder.path(), &seen) { Accepted } else { Refused };
            *last.borrow_mut() = Some(seen);
            verdict
        },
        used: &mut || {
            let seen: inspect::Inspection = last.take().unwrap();
            let text = inspect::text::render(&seen);
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
            serde_json::to_string(&seen).unwrap();
        },
    }
    .run();
}

#[test]
fn configurations_of_runs() {
    run_file("config", "config.toml", |dir, _| {
        let Ok(settings) = Settings::read_resolved(&dir.join("config.toml")) else { return false };
        let again = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(again.path(), settings.to_toml()).unwrap();
        assert_eq!(Settings::read_resolved(again.path()).unwrap(), settings);
        true
    });
}

#[test]
fn manifests_of_runs() {
    run_file("manifest", "manifest.json", |_, seen| seen.manifest.is_some());
}

#[test]
fn metrics_of_runs() {
    run_file("metrics", "metrics.jsonl", |_, seen| seen.notes.is_empty());
}

#[test]
fn recordings_of_runs() {
    run_file("run-flight", "flight/main.bin", |_, seen| seen.notes.is_empty());
}

/// Widths whose product with the rows is 0 modulo 2^64 fitted tensors without a number in them: the file was
/// accepted, and the first score panicked. A network without hidden units divided by 0.
#[test]
fn a_policy_of_impossible_widths_is_refused() {
    let scratch = Scratch::new("p.safetensors");
    let good = policies().remove(0).encode().unwrap();
    for (key, value) in [
        ("\\\"hidden\\\":4", "\\\"hidden\\\":0"),
        ("\\\"hidden\\\":4", "\\\"hidden\\\":9223372036854775808"),
        ("\\\"traffic_embedding\\\":0", "\\\"traffic_embedding\\\":4611686018427387904"),
        ("\\\"ad_embedding\\\":2", "\\\"ad_embedding\\\":18446744073709551615"),
    ] {
        let head = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
        let text = String::from_utf8(good[8..8 + head].to_vec()).unwrap();
        assert!(text.contains(key), "{key} in {text}");
        let text = text.replacen(key, value, 1);
        let bytes = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &good[8 + head..]].concat();
        let error = format!("{:#}", PolicyFile::read(&scratch.holding(&bytes)).unwrap_err());
        assert!(error.contains("its network"), "{error}");
    }
}

/// 1e308 is a number in a file and infinite in a curve: such a plan was accepted, and what it was written to was not.
#[test]
fn a_plan_with_an_infinite_curve_is_refused() {
    let scratch = Scratch::new("plan.json");
    let text = String::from_utf8(WORLD.plan.to_json()).unwrap();
    assert!(Plan::read(&scratch.holding(text.as_bytes())).is_ok());
    let (before, curve) = text.split_once("\"curve\":[0.0,").expect("a curve that begins with nothing");
    let text = format!("{before}\"curve\":[1e308,{curve}");
    let error = format!("{:#}", Plan::read(&scratch.holding(text.as_bytes())).unwrap_err());
    assert!(error.contains("curves are malformed"), "{error}");
}

/// Bytes after a block were taken for nothing.
#[test]
fn bytes_after_a_block_are_an_error() {
    let block = Block { format: admix::env::BLOCK_FORMAT, segments: vec![], explorer: vec![] };
    let mut bytes = [0; 16];
    let len = block.encode(&mut bytes).unwrap();
    assert_eq!(Block::decode(&bytes[..len]).unwrap(), block);
    assert!(Block::decode(&bytes[..len + 1]).unwrap_err().to_string().contains("follow"));
}
