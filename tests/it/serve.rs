//! The real server: it decides what the library decides, bears hostile clients, swaps policies under load and comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use admix::bench::score::jsonl;
use admix::bench::serve::Client;
use admix::bench::serve::hostile::{self, Slow, Storm};
use admix::log::schema::{AdType, TrackRow};
use admix::log::{CompileOptions, RawDay};
use admix::policy::file::PolicyFile;
use admix::policy::stored::BaselineFile;
use admix::score::{DayFiles, Decision, ScoreOptions, Scorer, ServedDay, ServedPolicy};
use admix::values::{Told, ValueModel};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::decisions::{SMALL, TWISTED, plan, policies, synth};
use super::harness::{PATIENCE, PROGRAM};
use super::support::admix;
use super::values;

/// A day to be served, and policies for it.
pub struct World {
    pub scratch: TempDir,
    pub day: PathBuf,
    pub policies: Vec<PathBuf>,
}

impl World {
    pub fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let days = synth(scratch.path(), &format!("{SMALL}{TWISTED}"), 2);
        let plan = plan(scratch.path(), &days[..1]);
        let policies = policies(scratch.path(), &plan, &days[0]);
        Self { day: days[1].clone(), policies, scratch }
    }

    /// A policy whose prices are not solved during the day: nothing of it happens beside serving.
    fn steady(&self) -> PathBuf {
        let mut file = PolicyFile::read(&self.policies[0]).unwrap();
        Arc::make_mut(&mut file.spec).policy.replan = false;
        let path = self.scratch.path().join("steady.safetensors");
        file.write(&path).unwrap();
        path
    }

    pub fn rows(&self) -> Vec<TrackRow> {
        RawDay::read(&self.day, CompileOptions::default()).unwrap().rows
    }

    pub fn state(&self) -> PathBuf {
        self.scratch.path().join("serve.state")
    }

    fn command(&self, policy: &Path, more: &[&str]) -> Command {
        let of = |name: &str| self.day.join(name);
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--listen", "127.0.0.1:0", "--policy"]).arg(policy);
        for (option, name) in [("--control", "control.tsv"), ("--inventory", "inventory.tsv"), ("--day", "day.toml")] {
            command.arg(option).arg(of(name));
        }
        if !more.contains(&"--state") {
            command.arg("--state").arg(self.state());
        }
        command.args(more);
        command
    }

    pub fn serve(&self, policy: &Path, more: &[&str]) -> Serving {
        let mut child = self.command(policy, more).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let address = loop {
            let line = lines.next().expect("the server says where it listens").unwrap();
            if let Some(address) = line.strip_prefix("listening on http://") {
                break address.parse().unwrap();
            }
            said.push_str(&line);
            said.push('\n');
        };
        std::thread::spawn(move || lines.for_each(drop));
        Serving { child, address, said }
    }
}

/// The exit code and the words of a server that does not start.
fn refused(mut command: Command) -> (Option<i32>, String) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it serves");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

/// A server under test; killed when dropped.
pub struct Serving {
    child: Child,
    address: SocketAddr,
    said: String,
}

impl Serving {
    pub fn client(&self) -> Client {
        Client::connect(self.address).unwrap()
    }

    fn metric(&self, name: &str) -> f64 {
        let (status, body) = self.client().send("GET", "/metrics", b"").unwrap();
        assert_eq!(status, 200);
        let text = String::from_utf8(body).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    pub fn stop(mut self) -> i32 {
        self.signal(Signal::SIGTERM);
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn lines(rows: &[TrackRow]) -> Vec<String> {
    String::from_utf8(jsonl(rows).unwrap()).unwrap().lines().map(ToOwned::to_owned).collect()
}

/// Its time would be the day's for all requests after it: flights would end, and controllers would hurry.
#[test]
fn a_request_of_a_later_time_than_now_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let days = synth(scratch.path(), &format!("start_date = \"{today}\"\n{SMALL}{TWISTED}"), 1);
    let plan = plan(scratch.path(), &days);
    let policies = policies(scratch.path(), &plan, &days[0]);
    let world = World { day: days[0].clone(), policies, scratch };
    let mut rows = world.rows();
    let serving = world.serve(&world.steady(), &[]);
    let mut client = serving.client();
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap();
    let later = now + 600_000;
    for (ts_ms, status) in [(later, 400), (now, 200)] {
        rows[0].ts_ms = ts_ms;
        let (got, body) = client.send("POST", "/v1/score", lines(&rows[..1])[0].as_bytes()).unwrap();
        // Ten minutes before midnight another rule holds, and after it the server's day is not today's.
        let is_of_today =
            |ts_ms: i64| jiff::Timestamp::from_millisecond(ts_ms).unwrap().strftime("%Y-%m-%d").to_string() == today;
        if is_of_today(i64::try_from(later).unwrap()) && is_of_today(jiff::Timestamp::now().as_millisecond()) {
            let body = String::from_utf8_lossy(&body).into_owned();
            assert!(got == status && (got == 200 || body.contains("ahead of this server's clock")), "{got} {body}");
        }
    }
    assert_eq!(serving.stop(), 0);
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn it_decides_what_the_library_decides_and_its_journal_is_a_log_directory() {
    let world = World::new();
    let rows = world.rows();
    let journal = world.scratch.path().join("journal");
    let steady = world.steady();
    let more = ["--journal", journal.to_str().unwrap(), "--rate-seed", "4", "--feedback-delay", "300"];
    let serving = world.serve(&steady, &more);
    let day = |name: &str| world.day.join(name);
    let files =
        DayFiles { control: day("control.tsv"), inventory: Some(day("inventory.tsv")), day: Some(day("day.toml")) };
    let served = ServedDay::read(&files, 0).unwrap();
    let policy = ServedPolicy::open(steady.to_str().unwrap(), None).unwrap();
    let options = ScoreOptions { rate_seed: 4, feedback_delay_s: 300.0, ..ScoreOptions::default() };
    let mut scorer = Scorer::new(&served, &policy, options).unwrap();
    let mut client = serving.client();
    let texts = lines(&rows);
    let mut decision = Decision::default();
    let mut shown = Vec::new();
    let mut at = 0;
    for (i, chunk) in rows.chunks(7).enumerate() {
        let array = i % 2 == 0;
        let body = format!("[{}]", texts[at..at + chunk.len()].join(","));
        let answers: Vec<Value> = if array {
            let (status, answer) = client.send("POST", "/v1/score", body.as_bytes()).unwrap();
            assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
            serde_json::from_slice(&answer).unwrap()
        } else {
            let one = |text: &String| client.send("POST", "/v1/score", text.as_bytes()).unwrap();
            texts[at..at + chunk.len()].iter().map(one).map(|(_, a)| serde_json::from_slice(&a).unwrap()).collect()
        };
        at += chunk.len();
        assert_eq!(answers.len(), chunk.len());
        for (row, answer) in chunk.iter().zip(&answers) {
            assert_eq!(answer["request_id"], row.request_id);
            scorer.decide(row, &mut decision).unwrap();
            assert_eq!(answer["chosen"], decision.chosen.map_or(0, |(ad, _)| ad));
            let scores = answer["scores"].as_array().unwrap();
            assert_eq!(scores.len(), decision.scores.len());
            for (score, (ad, expected)) in scores.iter().zip(&decision.scores) {
                assert_eq!(score["ad_id"], *ad);
                assert!((score["score"].as_f64().unwrap() - expected).abs() <= 1e-5 * expected.abs().max(1.0));
            }
            if answer["chosen"] != 0 {
                shown.push(json!({"request_id": row.request_id, "ad_id": answer["chosen"], "ts_ms": row.ts_ms}));
            }
        }
    }
    for (body, accepted) in [(&shown, shown.len()), (&shown, 0)] {
        let (status, answer) = client.send("POST", "/v1/exposures", json!(body).to_string().as_bytes()).unwrap();
        assert_eq!(status, 200);
        assert_eq!(serde_json::from_slice::<Value>(&answer).unwrap()["accepted"], accepted);
    }
    assert_eq!(serving.metric("admix_exposures_total"), shown.len() as f64);
    assert!(serving.metric("admix_score_seconds_count") > 0.0);
    let contract = rows.iter().flat_map(|r| &r.queue).find(|e| served.contracts.iter().any(|c| c.ad_id == e.ad_id));
    let entry = format!("/v1/dictionary?ad_id={}&slot_id=1&pac_bucket=80", contract.unwrap().ad_id);
    let (status, _) = client.send("GET", &entry, b"").unwrap();
    assert!(status == 200 || status == 404);
    assert_eq!(serving.stop(), 0);

    let date = journalled(&journal);
    admix().args(["data", "check"]).arg(&date).assert().success();
    let written = RawDay::read(&date, CompileOptions::default()).unwrap().rows;
    let outline = |rows: &[TrackRow]| -> Vec<(u64, u64, Vec<u64>)> {
        rows.iter().map(|r| (r.request_id, r.ts_ms, r.queue.iter().map(|e| e.ad_id).collect())).collect()
    };
    assert_eq!(outline(&written), outline(&rows));
    let prices = |rows: &[TrackRow]| rows.iter().flat_map(|r| &r.queue).map(|e| e.ecpm).collect::<Vec<_>>();
    assert!(prices(&written).iter().zip(prices(&rows)).all(|(w, r)| (w - r).abs() <= 1e-9 * r));
    let exposures = std::fs::read_to_string(date.join("joined_exposure.tsv")).unwrap();
    assert_eq!(exposures.lines().count(), 1 + shown.len());
}

/// The only day of a journal.
fn journalled(journal: &Path) -> PathBuf {
    std::fs::read_dir(journal).unwrap().next().unwrap().unwrap().path()
}

/// Readers set repeated rows aside, and more than one in a hundred made the day unusable.
#[test]
fn a_request_that_is_sent_twice_is_in_the_journal_once() {
    let world = World::new();
    let rows = world.rows();
    let journal = world.scratch.path().join("journal");
    let serving = world.serve(&world.policies[0], &["--journal", journal.to_str().unwrap()]);
    let mut client = serving.client();
    let texts = lines(&rows[..100]);
    for text in texts.iter().chain(&texts) {
        assert_eq!(client.send("POST", "/v1/score", text.as_bytes()).unwrap().0, 200);
    }
    wait_for("the journal", || serving.metric("admix_journal_repeated_total") == 100.0);
    assert_eq!(serving.metric("admix_journal_dropped_total"), 0.0);
    assert_eq!(serving.stop(), 0);
    let written = RawDay::read(&journalled(&journal), CompileOptions::default()).unwrap().rows;
    let ids = |rows: &[TrackRow]| rows.iter().map(|row| row.request_id).collect::<Vec<_>>();
    assert_eq!(ids(&written), ids(&rows[..100]));
}

/// The lines of a control table but those of a contract.
fn remove_contract(control: &Path, ad_id: &str) {
    let text = std::fs::read_to_string(control).unwrap();
    let at = text.lines().next().unwrap().split('\t').position(|column| column == "ad_id").unwrap();
    let others: Vec<&str> = text.lines().filter(|line| line.split('\t').nth(at) != Some(ad_id)).collect();
    assert_eq!(others.len() + 1, text.lines().count());
    std::fs::write(control, others.join("\n") + "\n").unwrap();
}

/// They passed for auction ads without a price, or for repeated ones.
#[test]
fn exposures_of_a_contract_that_left_the_control_table_are_in_the_journal() {
    let world = World::new();
    let rows = world.rows();
    let journal = world.scratch.path().join("journal");
    let more = ["--journal", journal.to_str().unwrap()];
    let serving = world.serve(&world.policies[0], &more);
    let mut client = serving.client();
    let mut shown = BTreeMap::<u64, Vec<Value>>::new();
    for (row, text) in rows.iter().zip(lines(&rows)) {
        let (status, answer) = client.send("POST", "/v1/score", text.as_bytes()).unwrap();
        assert_eq!(status, 200);
        let chosen = serde_json::from_slice::<Value>(&answer).unwrap()["chosen"].as_u64().unwrap();
        if row.queue.iter().any(|entry| entry.ad_id == chosen && entry.ad_type == AdType::Contract) {
            let exposure = json!({"request_id": row.request_id, "ad_id": chosen, "ts_ms": row.ts_ms});
            shown.entry(chosen).or_default().push(exposure);
        }
    }
    assert_eq!(serving.stop(), 0);
    let (gone, exposures) = shown.into_iter().max_by_key(|(_, exposures)| exposures.len()).unwrap();
    remove_contract(&world.day.join("control.tsv"), &gone.to_string());
    let again = world.serve(&world.policies[0], &more);
    let mut client = again.client();
    for _ in 0..2 {
        let (status, answer) = client.send("POST", "/v1/exposures", json!(exposures).to_string().as_bytes()).unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!((status, &answer), (200, &json!({"accepted": 0, "other_day": 0})));
    }
    assert_eq!(again.metric("admix_journal_without_price_total"), 0.0);
    assert_eq!(again.stop(), 0);
    let text = std::fs::read_to_string(journalled(&journal).join("joined_exposure.tsv")).unwrap();
    let written: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split('\t').collect()).collect();
    assert_eq!(written.len(), exposures.len());
    assert!(written.iter().all(|row| (row[3], row[4]) == (&*gone.to_string(), "C")), "{text}");
}

/// It did not start again, or the journal had lost contracts of earlier starts.
#[test]
fn a_server_killed_at_the_journals_control_table_starts_again_with_all_contracts() {
    let world = World::new();
    let journal = world.scratch.path().join("journal");
    let more = ["--journal", journal.to_str().unwrap()];
    let control = world.day.join("control.tsv");
    assert_eq!(world.serve(&world.policies[0], &more).stop(), 0);
    let day = journalled(&journal);
    let ids = |path: &Path| -> BTreeSet<String> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().skip(1).map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    };
    let written = day.join("control.tsv");
    let all = ids(&written);
    remove_contract(&control, all.first().unwrap());
    // Before the new table is in its place, and before the one with another ending is removed.
    for failpoint in ["journal.control@1=kill", "journal.control@2=kill"] {
        let packed = std::fs::File::create(day.join("control.tsv.gz")).unwrap();
        let mut packed = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
        packed.write_all(&std::fs::read(&written).unwrap()).unwrap();
        packed.finish().unwrap();
        std::fs::remove_file(&written).unwrap();
        let mut command = world.command(&world.policies[0], &more);
        command.env("ADMIX_FAILPOINT", failpoint);
        let (code, said) = refused(command);
        assert_eq!(code, None, "{said}");
        assert_eq!(world.serve(&world.policies[0], &more).stop(), 0);
        assert_eq!(ids(&written), all, "{failpoint}");
        assert!(!day.join("control.tsv.gz").exists(), "{failpoint}");
    }
}

/// Counts of `--delivered` were left out without a word.
#[test]
fn a_server_that_has_counts_says_that_it_does_not_use_delivered() {
    let world = World::new();
    let contract = world.rows().iter().flat_map(|row| row.queue.clone()).find(|e| e.ad_type == AdType::Contract);
    let delivered = world.scratch.path().join("delivered.tsv");
    std::fs::write(&delivered, format!("ad_id\tdelivered\n{}\t3\n", contract.unwrap().ad_id)).unwrap();
    let more = ["--delivered", delivered.to_str().unwrap()];
    let first = world.serve(&world.policies[0], &more);
    assert!(!first.said.contains("--delivered is not used"), "{}", first.said);
    assert_eq!(first.stop(), 0);
    let again = world.serve(&world.policies[0], &more);
    assert!(again.said.contains("--delivered is not used: "), "{}", again.said);
    assert_eq!(again.stop(), 0);
}

/// It was noticed with the next one only.
#[test]
fn a_policy_that_is_promoted_while_the_server_starts_is_served() {
    let world = World::new();
    let [promoted, next] = ["promoted.safetensors", "next"].map(|name| world.scratch.path().join(name));
    std::fs::copy(&world.policies[0], &promoted).unwrap();
    std::fs::copy(&world.policies[1], &next).unwrap();
    // The server reads this after the policy: the pipe opens when it has got there.
    let date = world.day.join("day.toml");
    let text = std::fs::read(&date).unwrap();
    std::fs::remove_file(&date).unwrap();
    mkfifo(&date, Mode::S_IRWXU).unwrap();
    let promoting = std::thread::spawn({
        let promoted = promoted.clone();
        move || {
            let mut pipe = std::fs::OpenOptions::new().write(true).open(date).unwrap();
            std::fs::rename(next, promoted).unwrap();
            pipe.write_all(&text).unwrap();
        }
    });
    let serving = world.serve(&promoted, &[]);
    promoting.join().unwrap();
    wait_for("the swap", || serving.metric("admix_swaps_total") == 1.0);
    assert_eq!(serving.stop(), 0);
}

/// It answered with the draw of one request.
#[test]
fn a_policy_that_draws_on_each_request_has_no_dictionary() {
    let world = World::new();
    let plan = PolicyFile::read(&world.policies[0]).unwrap().plan;
    let policy = world.scratch.path().join("promoted.safetensors");
    BaselineFile::new("pass-rate", plan).unwrap().write(&policy).unwrap();
    let serving = world.serve(&policy, &[]);
    let (status, answer) = serving.client().send("GET", "/v1/dictionary?ad_id=1", b"").unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(status == 404 && answer.contains("pass-rate draws on each request"), "{status} {answer}");
    assert_eq!(serving.stop(), 0);
}

#[test]
fn it_decides_at_the_values_of_a_model() {
    let world = World::new();
    let run = world.scratch.path().join("values");
    let train = format!("values.train={:?}", [world.day.with_file_name("day-0")]);
    let mut command = admix();
    command.args(["values", "train", "--config", values::CONFIG, "--run-dir"]).arg(&run);
    for set in [&train, "values.batch=64", "values.epochs=3", "table.max_rows=5000"] {
        command.args(["--set", set]);
    }
    command.assert().success();
    let model = Arc::new(ValueModel::read(&run).unwrap());
    let steady = world.steady();
    let serving = world.serve(&steady, &["--values", run.to_str().unwrap()]);

    let files = DayFiles {
        control: world.day.join("control.tsv"),
        inventory: Some(world.day.join("inventory.tsv")),
        day: Some(world.day.join("day.toml")),
    };
    let policy = ServedPolicy::open(steady.to_str().unwrap(), None).unwrap();
    let [logged, corrected] =
        [Told::Logged, Told::Model(model)].map(|told| ServedDay::read(&files, 0).unwrap().told(&told));
    let mut scorers = [&logged, &corrected].map(|day| Scorer::new(day, &policy, ScoreOptions::default()).unwrap());
    let rows = world.rows();
    let (mut client, mut decision, mut differ) = (serving.client(), Decision::default(), false);
    for (row, text) in rows.iter().zip(lines(&rows)) {
        let (status, answer) = client.send("POST", "/v1/score", text.as_bytes()).unwrap();
        assert_eq!(status, 200);
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        let [at_logged, at_corrected] = scorers.each_mut().map(|scorer| {
            scorer.decide(row, &mut decision).unwrap();
            decision.chosen.map_or(0, |(ad, _)| ad)
        });
        assert_eq!(answer["chosen"], at_corrected);
        differ |= at_logged != at_corrected;
    }
    assert!(differ, "the values change nothing");
    assert_eq!(serving.stop(), 0);
}

#[test]
fn a_killed_server_comes_back_with_its_counts() {
    let world = World::new();
    let rows = world.rows();
    let texts = lines(&rows);
    let serving = world.serve(&world.policies[0], &[]);
    let mut client = serving.client();
    for text in &texts[..texts.len() / 2] {
        assert_eq!(client.send("POST", "/v1/score", text.as_bytes()).unwrap().0, 200);
    }
    let delivered = |serving: &Serving| {
        let (_, body) = serving.client().send("GET", "/metrics", b"").unwrap();
        let text = String::from_utf8(body).unwrap();
        text.lines().filter(|l| l.starts_with("admix_contract_delivered")).map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let before = delivered(&serving);
    let saved = serving.metric("admix_saved_timestamp_seconds");
    // The second save from now began after the last request.
    wait_for("a save", || serving.metric("admix_saved_timestamp_seconds") > saved);
    let saved = serving.metric("admix_saved_timestamp_seconds");
    wait_for("another save", || serving.metric("admix_saved_timestamp_seconds") > saved);
    serving.signal(Signal::SIGKILL);
    drop(serving);
    let again = world.serve(&world.policies[0], &[]);
    assert!(again.said.contains("goes on from"), "{}", again.said);
    assert_eq!(delivered(&again), before);
    assert!(before.iter().any(|line| !line.ends_with(" 0")));
    assert_eq!(again.stop(), 0);
    // Counts that cannot be read end the start: without them everything would be delivered again.
    std::fs::write(world.state(), b"garbage").unwrap();
    let (code, said) = refused(world.command(&world.policies[0], &[]));
    assert!(code == Some(1) && said.contains("Move the file away"), "{said}");
    std::fs::remove_file(world.state()).unwrap();
    assert_eq!(world.serve(&world.policies[0], &[]).stop(), 0);
}

/// Both wrote one file of counts, and one journal.
#[test]
fn a_second_server_of_the_same_counts_is_refused() {
    let world = World::new();
    let journal = world.scratch.path().join("journal");
    let serving = world.serve(&world.policies[0], &["--journal", journal.to_str().unwrap()]);
    let (code, said) = refused(world.command(&world.policies[0], &[]));
    assert!(code == Some(1) && said.contains("--state"), "{said}");
    let own = world.scratch.path().join("own.state");
    let more = ["--state", own.to_str().unwrap(), "--journal", journal.to_str().unwrap()];
    let (code, said) = refused(world.command(&world.policies[0], &more));
    assert!(code == Some(1) && said.contains("--journal"), "{said}");
    assert_eq!(serving.stop(), 0);
    let more = ["--journal", journal.to_str().unwrap()];
    assert_eq!(world.serve(&world.policies[0], &more).stop(), 0);
}

/// An exposure of another ad than the chosen one was written with a charge of 0, and one of another day counted today.
#[test]
fn what_was_shown_has_its_own_price_and_counts_on_its_own_day() {
    let world = World::new();
    let rows = world.rows();
    let journal = world.scratch.path().join("journal");
    let serving = world.serve(&world.policies[0], &["--journal", journal.to_str().unwrap()]);
    let mut client = serving.client();
    let texts = lines(&rows);
    let mut expected = Vec::new();
    let mut exposures = Vec::new();
    for (row, text) in rows.iter().zip(&texts).take(60) {
        assert_eq!(client.send("POST", "/v1/score", text.as_bytes()).unwrap().0, 200);
        let Some(entry) = row.queue.iter().rfind(|e| e.ad_type == AdType::Auction) else { continue };
        exposures.push(json!({"request_id": row.request_id, "ad_id": entry.ad_id, "ts_ms": row.ts_ms}));
        expected.push((row.request_id, entry.ad_id, entry.ecpm, entry.pctr));
    }
    let body = json!(exposures).to_string();
    assert_eq!(client.send("POST", "/v1/exposures", body.as_bytes()).unwrap().0, 200);
    let contract = rows.iter().flat_map(|r| &r.queue).find(|e| e.ad_type == AdType::Contract).unwrap().ad_id;
    let others = json!([
        {"request_id": 1, "ad_id": contract, "ts_ms": 5},
        {"request_id": 2, "ad_id": contract, "ts_ms": rows[0].ts_ms + 40 * 86_400_000},
        // Nobody knows what this was worth.
        {"request_id": 3, "ad_id": 1, "ts_ms": rows[0].ts_ms},
    ]);
    let (status, answer) = client.send("POST", "/v1/exposures", others.to_string().as_bytes()).unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!((status, &answer), (200, &json!({"accepted": 0, "other_day": 2})));
    wait_for("the journal", || serving.metric("admix_journal_without_price_total") == 1.0);
    assert_eq!(serving.stop(), 0);
    let date = journalled(&journal);
    let text = std::fs::read_to_string(date.join("joined_exposure.tsv")).unwrap();
    let (header, written) = text.split_once('\n').unwrap();
    let at = |name: &str| header.split('\t').position(|column| column == name).unwrap();
    let rows: Vec<Vec<&str>> = written.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), expected.len());
    for (row, (request_id, ad_id, ecpm, pctr)) in rows.iter().zip(expected) {
        let number = |name: &str| row[at(name)].parse::<f64>().unwrap();
        assert_eq!((row[at("request_id")], row[at("ad_id")]), (&*request_id.to_string(), &*ad_id.to_string()));
        assert!((number("charge") - ecpm / 1000.0).abs() < 1e-6 && (number("pctr") - pctr).abs() < 1e-6, "{row:?}");
        assert!(ecpm > 0.0 && (number("ecpm") - ecpm).abs() < 1e-3, "{row:?}");
    }
}

#[test]
fn a_policy_is_swapped_a_hundred_times_under_load_without_an_error() {
    let world = World::new();
    let rows = world.rows();
    let texts = lines(&rows);
    let promoted = world.scratch.path().join("promoted.safetensors");
    std::fs::copy(&world.policies[0], &promoted).unwrap();
    let serving = world.serve(&promoted, &[]);
    let (address, done) = (serving.address, AtomicBool::new(false));
    let answered = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut client = Client::connect(address).unwrap();
            let mut answered = 0u64;
            while !done.load(Ordering::Relaxed) {
                let text = &texts[answered as usize % texts.len()];
                let (status, body) = client.send("POST", "/v1/score", text.as_bytes()).unwrap();
                assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
                answered += 1;
            }
            answered
        });
        for i in 0..100 {
            let next = world.scratch.path().join("next");
            std::fs::copy(&world.policies[(i + 1) % 2], &next).unwrap();
            std::fs::rename(&next, &promoted).unwrap();
            wait_for("a swap", || serving.metric("admix_swaps_total") > i as f64);
        }
        done.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    assert!(answered > 100, "{answered} requests");
    // A file that is no policy leaves the old one in place; SIGHUP reads it again.
    std::fs::write(&promoted, b"garbage").unwrap();
    wait_for("a refusal", || serving.metric("admix_failed_swaps_total") > 0.0);
    std::fs::copy(&world.policies[0], &promoted).unwrap();
    serving.signal(Signal::SIGHUP);
    wait_for("the reload", || serving.metric("admix_swaps_total") > 100.0);
    assert_eq!(serving.client().send("POST", "/v1/score", texts[0].as_bytes()).unwrap().0, 200);
    assert_eq!(serving.stop(), 0);
}

#[test]
fn a_thousand_hostile_requests_get_the_right_answers_in_flat_memory() {
    let world = World::new();
    let rows = world.rows();
    let serving = world.serve(&world.policies[0], &["--patience", "600", "--connections", "64"]);
    let good = lines(&rows[..1]).remove(0);
    let mut early = None;
    let storm = hostile::storm(serving.address, &good, rows[0].ts_ms, 1000, &mut |sent| {
        if sent > 200 && early.is_none() {
            early = Some(serving.resident_kib());
        }
    });
    let (storm, early) = (storm.unwrap(), early.unwrap());
    assert!(storm.wrong.is_empty(), "{:#?}", storm.wrong);
    assert!(storm.sent >= 1000 && storm.kinds.len() > 10, "{storm:?}");
    // More connections than it takes: the rest are told so, and it serves on afterwards.
    let open: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(serving.address).unwrap()).collect();
    let mut refused = 0;
    for _ in 0..20 {
        let mut more = TcpStream::connect(serving.address).unwrap();
        more.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        let _ = more.read_to_end(&mut answer);
        refused += u32::from(answer.starts_with(b"HTTP/1.1 503"));
    }
    assert!(refused > 0, "no connection was refused");
    drop(open);
    wait_for("room for a client", || matches!(serving.client().send("GET", "/healthz", b""), Ok((200, _))));
    let late = serving.resident_kib();
    assert!(late < early + 64 * 1024, "{early} KiB after 200 requests, {late} after all");
    assert_eq!(serving.stop(), 0);
}

#[test]
fn slow_clients_are_cut_off() {
    let world = World::new();
    let serving = world.serve(&world.policies[0], &["--patience", "1"]);
    let (slow, mut storm) = (Slow::open(serving.address, 3).unwrap(), Storm::default());
    slow.given_up(&mut storm);
    assert!(storm.wrong.is_empty() && storm.sent == 6, "{storm:?}");
    assert_eq!(serving.client().send("GET", "/healthz", b"").unwrap().0, 200);
    assert_eq!(serving.stop(), 0);
}
