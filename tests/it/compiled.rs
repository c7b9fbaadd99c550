//! The compiled log: reused while its inputs stay, rebuilt when they change, and never believed when it is damaged.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use admix::env::DayModel;
use admix::log::compiled::{CompiledLog, Contract, Counts, VERSION};
use admix::log::schema::{AdType, QueueEntry};
use admix::log::{self, Auction, CompileOptions, ContractEntry, LogError, Request};
use admix::plan::Plan;
use admix::policy::baselines::ContractFirst;
use admix::policy::{ReplayOptions, replay_day};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use tempfile::TempDir;
use twox_hash::XxHash3_64;

use super::support::admix;
use super::worlds::{Size, World, cases, open, sized};

/// Everything that a compiled log says, but for where it lies and what it is called.
type Content = (Vec<Request>, Vec<Vec<ContractEntry>>, Vec<Vec<Auction>>, Vec<Contract>, Counts);

fn content(log: &CompiledLog) -> Content {
    (
        log.requests().to_vec(),
        log.requests().iter().map(|r| log.entries(&r).to_vec()).collect(),
        log.requests().iter().map(|r| log.auctions(&r).to_vec()).collect(),
        log.contracts().to_vec(),
        log.counts().clone(),
    )
}

/// A world that has everything in it, the same at every call.
fn sample() -> World {
    let size = Size { requests: (40..=40).into(), contracts: 3..=3, required: 10 };
    let mut world = sized(size).new_tree(&mut TestRunner::deterministic()).unwrap().current();
    // Every queue starts with an auction ad that may be shown.
    for row in &mut world.rows {
        row.queue[0] = QueueEntry { ad_id: 900, ad_type: AdType::Auction, filter: 0, ..row.queue[0] };
    }
    world
}

fn written(world: &World) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    world.write(dir.path());
    dir
}

fn cache(dir: &Path) -> PathBuf {
    dir.join(".admix/compiled.log")
}

/// A file written anew and renamed into place has another inode.
fn inode(path: &Path) -> u64 {
    path.metadata().unwrap().ino()
}

/// The sample compiled: its bytes and what they say.
static COMPILED: LazyLock<(Vec<u8>, Content)> = LazyLock::new(|| {
    let dir = written(&sample());
    let content = content(&open(dir.path()));
    (std::fs::read(cache(dir.path())).unwrap(), content)
});

/// Byte offsets of the header's fields.
mod header {
    pub const VERSION: usize = 8;
    pub const INPUTS: std::ops::Range<usize> = 16..32;
    pub const CHECKSUM: usize = 32;
    pub const TOTAL: usize = 40;
    pub const REQUESTS: usize = 48;
    pub const ENTRIES: usize = 56;
    pub const AUCTIONS: usize = 64;
    pub const TAIL: usize = 72;
    pub const BLOCKS: usize = 80;
    pub const RESERVED: std::ops::Range<usize> = 88..120;
    pub const END: usize = 120;
}

/// Byte offsets of the fields of a block's row in the index.
mod block {
    pub const AT: usize = 0;
    pub const LEN: usize = 8;
    pub const CHECKSUM: usize = 16;
    pub const FIRST: usize = 24;
    pub const LAST: usize = 32;
    pub const REQUESTS: usize = 40;
    pub const ENTRIES: usize = 44;
    pub const AUCTIONS: usize = 48;
    pub const WIDEST: usize = 52;
    pub const ADS: usize = 56;
    pub const BYTES: usize = 64;
}

/// Fields of the head of a block: 16 bytes each, base, width, kind, scale and five zeros.
mod field {
    pub const TIME: usize = 1;
    pub const BEST: usize = 2;
    pub const ENTRIES_END: usize = 4;
    pub const AUCTIONS_END: usize = 5;
    pub const SLOT: usize = 6;
    pub const VIEWER: usize = 8;
    pub const CONTRACT: usize = 9;
    pub const PCTR: usize = 10;
    pub const AD: usize = 13;
    pub const ECPM: usize = 14;
    pub const ALL: usize = 17;
    pub const BYTES: usize = 16;
    pub const WIDTH: usize = 8;
    pub const KIND: usize = 9;
    pub const SCALE: usize = 10;
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn set(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Where the index begins, if the header points inside.
fn index_at(bytes: &[u8]) -> Option<usize> {
    let index = (word(bytes, header::BLOCKS) as usize).checked_mul(block::BYTES)?;
    let at = bytes.len().checked_sub(word(bytes, header::TAIL) as usize)?.checked_sub(index)?;
    (at >= header::END).then_some(at)
}

/// Makes checksums and length fit the bytes, as one who forges a log would.
pub fn forge(bytes: &mut [u8]) {
    set(bytes, header::TOTAL, bytes.len() as u64);
    let Some(index) = index_at(bytes) else { return };
    for i in 0..word(bytes, header::BLOCKS) as usize {
        let row = index + i * block::BYTES;
        let [from, len] = [block::AT, block::LEN].map(|at| word(bytes, row + at) as usize);
        if let Some(content) = from.checked_add(len).and_then(|end| bytes.get(from..end)) {
            let sum = XxHash3_64::oneshot(content);
            set(bytes, row + block::CHECKSUM, sum);
        }
    }
    let sum = XxHash3_64::oneshot(&bytes[index..]);
    set(bytes, header::CHECKSUM, sum);
}

/// Opens bytes as a compiled log; a panic is a failure of the test, an error must say which file and what to do.
fn open_bytes(bytes: &[u8]) -> Result<CompiledLog, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let opened = catch_unwind(|| CompiledLog::open(file.path())).unwrap_or_else(|_| panic!("opening panicked"));
    opened.map_err(|e| {
        let text = e.to_string();
        assert!(matches!(e, LogError::Compiled { .. }), "{text}");
        assert!(text.contains(file.path().to_str().unwrap()) && text.contains("rebuilt"), "{text}");
        text
    })
}

/// Puts bytes where the compiled log of the sample lies, and opens the sample's directory.
fn reopen(dir: &Path, bytes: &[u8]) -> Content {
    std::fs::write(cache(dir), bytes).unwrap();
    content(&open(dir))
}

#[test]
fn the_compiled_log_is_reused_while_its_inputs_stay() {
    let dir = written(&sample());
    let first = content(&open(dir.path()));
    let at = inode(&cache(dir.path()));
    assert_eq!(content(&open(dir.path())), first);
    // Neither a newer time stamp, nor a table that has no part in it, nor another share of bad rows, nor completed
    // queues are a reason to compile again.
    let track = dir.path().join("track_log.tsv");
    std::fs::write(&track, std::fs::read(&track).unwrap()).unwrap();
    std::fs::write(dir.path().join("inventory.tsv"), "not read here").unwrap();
    let completed = CompileOptions { complete_queues: true, ..CompileOptions::default() };
    let completed = content(&log::open(dir.path(), completed).unwrap());
    assert_ne!(completed, first);
    log::open(dir.path(), CompileOptions { max_bad_share: 0.5, ..CompileOptions::default() }).unwrap();
    assert_eq!(content(&open(dir.path())), first);
    assert_eq!(inode(&cache(dir.path())), at);
}

#[test]
fn whatever_changes_in_the_inputs_is_seen() {
    let dir = written(&sample());
    let mut seen = vec![content(&open(dir.path()))];
    let mut changed = sample();
    let edits: [fn(&mut World); 6] = [
        |w| w.rows[0].queue[0].pctr = 0.125,
        |w| w.rows[7].ts_ms = w.start_ms(),
        |w| w.contracts[1].penalty += 1.0,
        |w| w.contracts[0].rate = 0.75,
        |w| drop(w.rows.pop()),
        |w| w.rows[3].queue[0].filter = 8,
    ];
    for edit in edits {
        edit(&mut changed);
        changed.write(dir.path());
        let now = content(&open(dir.path()));
        assert_eq!(now, content(&open(written(&changed).path())), "as if it were compiled for the first time");
        assert!(!seen.contains(&now));
        seen.push(now);
    }
    // Another calendar moves the flights' whole days.
    std::fs::write(dir.path().join("day.toml"), "date = \"2026-03-10\"\nutc_offset_minutes = 60\n").unwrap();
    let shifted = log::open(dir.path(), CompileOptions { max_bad_share: 1.0, ..CompileOptions::default() }).unwrap();
    assert!(!seen.contains(&content(&shifted)));
}

#[test]
fn a_directory_that_is_renamed_goes_by_its_new_name() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("monday"), folder.path().join("tuesday"));
    std::fs::create_dir(&old).unwrap();
    sample().write(&old);
    let before = open(&old);
    assert_eq!(before.name(), "monday");
    std::fs::rename(&old, &new).unwrap();
    let after = open(&new);
    assert_eq!(after.name(), "tuesday");
    assert_eq!(content(&after), content(&before));
}

#[test]
fn a_share_of_bad_rows_that_was_allowed_once_is_judged_anew_on_the_compiled_log() {
    let mut world = sample();
    world.rows[0].queue[0].ad_id = 77;
    world.rows[0].queue[0].ad_type = AdType::Contract;
    let dir = written(&world);
    let options = |max_bad_share| CompileOptions { max_bad_share, ..CompileOptions::default() };
    let allowed = log::open(dir.path(), options(0.5)).unwrap();
    assert_eq!(allowed.counts().quarantined, 1);
    let refused = log::open(dir.path(), options(0.0)).unwrap_err();
    assert!(matches!(refused, LogError::TooManyBad { bad: 1, .. }), "{refused}");
    log::open(dir.path(), options(0.5)).unwrap();
}

#[test]
fn a_truncated_log_is_refused_at_every_length_and_rebuilt() {
    let (bytes, expected) = &*COMPILED;
    let dir = written(&sample());
    open(dir.path());
    let lengths = (0..=header::END + 8).chain((header::END..bytes.len()).step_by(97)).chain([bytes.len() - 1]);
    for length in lengths {
        open_bytes(&bytes[..length]).expect_err("half a log");
        if length % 5 == 0 {
            assert_eq!(&reopen(dir.path(), &bytes[..length]), expected, "{length} bytes");
        }
    }
    let longer = [bytes.as_slice(), b"\0"].concat();
    open_bytes(&longer).expect_err("one byte too many");
    assert_eq!(&reopen(dir.path(), &longer), expected);
}

#[test]
fn a_flipped_bit_changes_nothing_that_is_read() {
    let (bytes, expected) = &*COMPILED;
    let dir = written(&sample());
    open(dir.path());
    for at in (0..header::END).chain((header::END..bytes.len()).step_by(61)) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        match open_bytes(&damaged) {
            // What the log was compiled from is compared by whoever opens a directory; nobody reads the reserve.
            Ok(log) => {
                assert!(header::INPUTS.contains(&at) || header::RESERVED.contains(&at), "byte {at} was believed");
                assert_eq!(&content(&log), expected);
            }
            Err(e) => assert!(!header::INPUTS.contains(&at), "{e}"),
        }
        if at % 3 == 0 {
            assert_eq!(&reopen(dir.path(), &damaged), expected, "byte {at}");
        }
    }
}

#[test]
fn another_file_and_another_version_are_told_apart() {
    let (bytes, expected) = &*COMPILED;
    let mut other = bytes.clone();
    other[..8].copy_from_slice(b"ADMIXOLD");
    assert!(open_bytes(&other).unwrap_err().contains("magic"));
    let mut newer = bytes.clone();
    newer[header::VERSION..header::VERSION + 4].copy_from_slice(&(VERSION + 1).to_le_bytes());
    forge(&mut newer);
    assert!(open_bytes(&newer).unwrap_err().contains(&format!("version {}", VERSION + 1)));
    let mut records = bytes.clone();
    records[header::VERSION + 4] ^= 1;
    open_bytes(&records).unwrap_err();
    let dir = written(&sample());
    open(dir.path());
    for bytes in [other, newer, records, b"request_id\tts_ms".repeat(40), vec![0; 4096]] {
        assert_eq!(&reopen(dir.path(), &bytes), expected);
    }
}

#[test]
fn counts_that_point_outside_are_refused_however_they_add_up() {
    let bytes = &COMPILED.0;
    let count = |at| word(bytes, at);
    let counts = [header::REQUESTS, header::ENTRIES, header::AUCTIONS, header::BLOCKS, header::TAIL];
    let mut forged: Vec<Vec<(usize, u64)>> = Vec::new();
    for at in counts {
        // The last one wraps around to no bytes where a block of the index is multiplied by its size.
        let wraps = u64::MAX / block::BYTES as u64 + 1;
        for value in [0, 1, count(at) + 1, count(at).wrapping_sub(1), 1 << 32, 1 << 60, u64::MAX, wraps] {
            if value != count(at) {
                forged.push(vec![(at, value)]);
            }
        }
        // Wraps around to the right length.
        forged.push(vec![(at, count(at).wrapping_add(1 << 63))]);
        forged.push(vec![(at, count(at).wrapping_add(1 << 59))]);
    }
    // Right in sum: an index that was tail, a tail that was index.
    let tail = count(header::TAIL);
    forged.push(vec![(header::BLOCKS, 2), (header::TAIL, tail - block::BYTES as u64)]);
    forged.push(vec![(header::BLOCKS, 0), (header::TAIL, tail + block::BYTES as u64)]);
    for edits in forged {
        let mut bytes = bytes.clone();
        for &(at, value) in &edits {
            set(&mut bytes, at, value);
        }
        forge(&mut bytes);
        assert!(open_bytes(&bytes).is_err(), "{edits:?} was believed");
    }
}

#[test]
fn blocks_that_point_outside_are_refused() {
    let bytes = &COMPILED.0;
    let row = index_at(bytes).unwrap();
    let first = word(bytes, row + block::AT);
    let edits: [(&str, usize, u64); 19] = [
        ("a place in the header", block::AT, 0),
        ("an odd place", block::AT, first + 1),
        ("a place beyond the end", block::AT, bytes.len() as u64),
        ("a place beyond all memory", block::AT, u64::MAX - 7),
        ("a first request before the day", block::FIRST, 0),
        ("a last request after the day", block::LAST, u64::MAX),
        ("a first request after the last", block::FIRST, word(bytes, row + block::LAST) + 1),
        ("no request", block::REQUESTS, word(bytes, row + block::REQUESTS) & !0xffff_ffff),
        ("too many requests", block::REQUESTS, word(bytes, row + block::REQUESTS) | 0xffff_ffff),
        ("more requests than a block has", block::REQUESTS, word(bytes, row + block::REQUESTS) & !0xffff_ffff | 4097),
        ("too many entries", block::ENTRIES, word(bytes, row + block::ENTRIES) | 0xffff_ffff),
        ("too many auction entries", block::AUCTIONS, word(bytes, row + block::AUCTIONS) | 0xffff_ffff),
        ("no bytes", block::LEN, 0),
        ("fewer bytes than its rows", block::LEN, word(bytes, row + block::LEN) - 8),
        ("bytes of what follows", block::LEN, word(bytes, row + block::LEN) + 8),
        ("more bytes than memory", block::LEN, u64::MAX - 7),
        ("no entry at all", block::WIDEST, word(bytes, row + block::WIDEST) & !0xffff_ffff),
        ("a dictionary that is not there", block::ADS, 1),
        ("something behind the last number", block::ADS, 1 << 32),
    ];
    for (what, at, value) in edits {
        let mut bytes = bytes.clone();
        set(&mut bytes, row + at, value);
        forge(&mut bytes);
        assert!(open_bytes(&bytes).is_err(), "{what} was believed");
    }
}

#[test]
fn numbers_that_point_outside_are_refused() {
    let bytes = &COMPILED.0;
    let base = |field: usize| word(bytes, header::END + field * field::BYTES);
    let edits: [(&str, usize, u64); 11] = [
        ("entries before the first", field::ENTRIES_END, base(field::ENTRIES_END).wrapping_sub(1)),
        ("entries after the last", field::ENTRIES_END, base(field::ENTRIES_END) + 1),
        ("auction entries after the last", field::AUCTIONS_END, base(field::AUCTIONS_END) + 1),
        ("entries that begin again", field::ENTRIES_END, u64::MAX),
        ("a time before the day", field::TIME, 0),
        ("a time after the day", field::TIME, base(field::TIME) + (1 << 40)),
        ("a time that begins again", field::TIME, u64::MAX),
        ("a slot of 33 bits", field::SLOT, 1 << 32),
        ("a viewer that no number is for", field::VIEWER, 60),
        ("a contract that is not there", field::CONTRACT, 3),
        ("a click that is more than certain", field::PCTR, u64::MAX),
    ];
    for (what, field, value) in edits {
        let mut bytes = bytes.clone();
        set(&mut bytes, header::END + field * field::BYTES, value);
        forge(&mut bytes);
        assert!(open_bytes(&bytes).is_err(), "{what} was believed");
    }
}

#[test]
fn widths_kinds_and_scales_that_no_writer_makes_are_refused() {
    let bytes = &COMPILED.0;
    for field in 0..field::ALL {
        let at = header::END + field * field::BYTES;
        let (width, kind) = (bytes[at + field::WIDTH], bytes[at + field::KIND]);
        let real =
            [field::BEST, field::PCTR, field::PCTR + 1, field::PCTR + 2].contains(&field) || field >= field::ECPM;
        let mut edits: Vec<(usize, u8)> = vec![(field::WIDTH, width + 1), (field::WIDTH, 9), (field::WIDTH, 255)];
        if width > 0 {
            edits.push((field::WIDTH, width - 1));
        }
        edits.extend([6, 7, 255].map(|kind| (field::KIND, kind)));
        edits.extend(if real {
            vec![(field::KIND, 0), (field::KIND, 4)]
        } else {
            vec![(field::KIND, 1), (field::KIND, 5)]
        });
        if field == field::AD {
            edits.push((field::KIND, 4));
        }
        // A decimal's scale may be another one; it then is another value, which is the forger's right.
        edits.extend(if real && kind == 1 {
            vec![(field::SCALE, 23), (field::SCALE, 255)]
        } else {
            vec![(field::SCALE, 1)]
        });
        edits.extend((field::SCALE + 1..field::BYTES).map(|zero| (zero, 1)));
        for (of, value) in edits {
            let mut bytes = bytes.clone();
            bytes[at + of] = value;
            forge(&mut bytes);
            assert!(open_bytes(&bytes).is_err(), "byte {of} of field {field} was {value} and believed");
        }
    }
}

/// Blocks of a large log are checked when they are touched: what is damaged is never read, what is not can be.
#[test]
fn a_damaged_block_is_found_when_it_is_touched() {
    let mut bytes = COMPILED.0.clone();
    bytes[header::END + 3] ^= 4;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let log = CompiledLog::open_checking(file.path(), 0).expect("nothing was touched yet");
    assert_eq!(log.requests().len(), COMPILED.1.0.len());
    let touched = catch_unwind(AssertUnwindSafe(|| log.requests().row(0).request_id)).unwrap_err();
    let said = touched.downcast_ref::<String>().unwrap();
    assert!(said.contains("checksum mismatch in block 0") && said.contains(file.path().to_str().unwrap()), "{said}");
    let error = log.verify().unwrap_err().to_string();
    assert!(error.contains("rebuilt"), "{error}");
    std::fs::write(file.path(), &COMPILED.0).unwrap();
    let log = CompiledLog::open_checking(file.path(), 0).unwrap();
    assert_eq!(content(&log), COMPILED.1);
}

#[test]
fn a_forged_tail_is_refused() {
    let bytes = &COMPILED.0;
    let body = bytes.len() - word(bytes, header::TAIL) as usize;
    let tail = String::from_utf8(bytes[body..].to_vec()).unwrap();
    let with = |tail: &str| {
        let mut bytes = [&bytes[..body], tail.as_bytes()].concat();
        set(&mut bytes, header::TAIL, tail.len() as u64);
        forge(&mut bytes);
        open_bytes(&bytes)
    };
    with(&tail).expect("the tail as it was");
    let nested = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let mut no_contracts: serde_json::Value = serde_json::from_str(&tail).unwrap();
    no_contracts["contracts"] = serde_json::json!([]);
    let mut other_day = no_contracts.clone();
    other_day["day"]["start_ms"] = serde_json::json!(u64::MAX);
    for forged in
        ["", "{}", "null", "\u{0}", &nested, &no_contracts.to_string(), &other_day.to_string(), &format!("{tail}x")]
    {
        assert!(with(forged).is_err(), "{:.60} was believed", forged);
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn a_log_with_forged_bytes_is_refused_or_read_without_harm(
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), 1usize..=8, any::<u64>()), 1..6),
        length in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let mut bytes = COMPILED.0.clone();
        if let Some(length) = length {
            bytes.truncate(header::END + length.index(bytes.len() - header::END));
        }
        for (at, width, value) in edits {
            // The magic and the version are other tests' business.
            let at = header::INPUTS.start + at.index(bytes.len() - header::INPUTS.start);
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
        forge(&mut bytes);
        if let Ok(log) = open_bytes(&bytes) {
            let replayed = catch_unwind(AssertUnwindSafe(|| {
                let _ = (content(&log), log.widest(), log.stake());
                let plan = Plan::from_days(&[&log], 0).unwrap();
                let day = DayModel::with_forecast(log, &plan.forecast, &plan, Arc::default());
                replay_day(&day, &mut ContractFirst, ReplayOptions { rate_seed: 0, delay: admix::env::Delay::fixed(0.0) }, &mut |_| {})
            }));
            prop_assert!(replayed.is_ok());
        }
    }
}

#[test]
fn many_may_open_a_directory_at_once() {
    let world = sample();
    let expected = &COMPILED.1;
    for _ in 0..5 {
        let dir = written(&world);
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        content(&open(dir.path()))
                    })
                })
                .collect();
            for thread in threads {
                assert_eq!(&thread.join().unwrap(), expected);
            }
        });
        let left = names(&dir.path().join(".admix"));
        assert!(left.iter().all(|name| name == "compiled.log" || name == "inputs.json"), "{left:?} is left over");
    }
    let dir = written(&world);
    let children: Vec<_> = (0..6)
        .map(|_| {
            let program = admix().get_program().to_owned();
            std::process::Command::new(program)
                .args(["data", "check", "--json"])
                .arg(dir.path())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let outputs: BTreeSet<_> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            output.stdout
        })
        .collect();
    assert_eq!(outputs.len(), 1, "all say the same");
    let left = names(&dir.path().join(".admix"));
    assert!(left.iter().all(|name| name == "compiled.log" || name == "inputs.json"), "{left:?}");
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = folder.read_dir().unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Opens directories with the real program under other homes; what it keeps lies in `caches/*/`.
fn check(dirs: &[&Path], variables: &[(&str, &Path)], folder: &Path) {
    let mut command = admix();
    command
        .current_dir(folder)
        .env_remove("XDG_CACHE_HOME")
        .env_remove("HOME")
        .args(["data", "check", "--json"])
        .args(dirs);
    command.envs(variables.iter().copied()).assert().success();
}

#[test]
fn where_nothing_can_be_kept_beside_the_inputs_the_users_cache_is_used() {
    let (dir, other) = (written(&sample()), written(&sample()));
    for dir in [&dir, &other] {
        // A file stands where the folder would be: even root cannot make it.
        std::fs::write(dir.path().join(".admix"), "").unwrap();
    }
    let before = names(dir.path());
    let home = tempfile::tempdir().unwrap();
    let xdg = home.path().join("xdg");
    let kept = |cache: &Path| {
        let cache = cache.join("admix");
        names(&cache).iter().map(|n| inode(&cache.join(n).join("compiled.log"))).collect::<Vec<_>>()
    };
    check(&[dir.path()], &[("XDG_CACHE_HOME", &xdg)], home.path());
    let first = kept(&xdg);
    assert_eq!(first.len(), 1);
    check(&[dir.path()], &[("XDG_CACHE_HOME", &xdg)], home.path());
    assert_eq!(kept(&xdg), first, "used again");
    check(&[dir.path(), other.path()], &[("XDG_CACHE_HOME", &xdg)], home.path());
    assert_eq!(kept(&xdg).len(), 2, "each directory has its own");
    // Unset or empty, it is the home's cache.
    for (n, variables) in
        [vec![("HOME", home.path())], vec![("HOME", home.path()), ("XDG_CACHE_HOME", Path::new(""))]].iter().enumerate()
    {
        check(&[[dir.path(), other.path()][n]], variables, home.path());
        assert_eq!(kept(&home.path().join(".cache")).len(), n + 1);
    }
    assert_eq!(names(home.path()), [".cache", "xdg"]);
    assert_eq!(names(dir.path()), before, "the inputs are left alone");
}

#[test]
fn a_read_only_directory_is_left_alone() {
    let dir = written(&sample());
    let set = |mode| std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    set(0o555);
    let ignored = std::fs::File::create(dir.path().join("probe")).is_ok();
    if ignored {
        eprintln!("a_read_only_directory: skipped, this user may write anywhere");
    } else {
        let home = tempfile::tempdir().unwrap();
        check(&[dir.path()], &[("XDG_CACHE_HOME", home.path())], home.path());
        assert_eq!(names(home.path()), ["admix"]);
        assert_eq!(names(dir.path()), ["control.tsv", "day.toml", "track_log.tsv"]);
    }
    set(0o755);
}
