//! The real server: it decides what the library decides, bears hostile clients, swaps policies under load and comes back.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use admix::bench::score::jsonl;
use admix::bench::serve::Client;
use admix::log::schema::TrackRow;
use admix::log::{CompileOptions, RawDay};
use admix::policy::file::PolicyFile;
use admix::score::{DayFiles, Decision, ScoreOptions, Scorer, ServedDay, ServedPolicy};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::decisions::{SMALL, TWISTED, plan, policies, synth};
use super::harness::{PATIENCE, PROGRAM};
use super::support::admix;

struct World {
    scratch: TempDir,
    day: PathBuf,
    policies: Vec<PathBuf>,
}

impl World {
    fn new() -> Self {
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

    fn rows(&self) -> Vec<TrackRow> {
        RawDay::read(&self.day, CompileOptions::default()).unwrap().rows
    }

    fn state(&self) -> PathBuf {
        self.scratch.path().join("serve.state")
    }

    fn serve(&self, policy: &Path, more: &[&str]) -> Serving {
        let of = |name: &str| self.day.join(name);
        let mut child = Command::new(PROGRAM)
            .args(["serve", "--listen", "127.0.0.1:0", "--policy"])
            .arg(policy)
            .arg("--control")
            .arg(of("control.tsv"))
            .arg("--inventory")
            .arg(of("inventory.tsv"))
            .arg("--day")
            .arg(of("day.toml"))
            .arg("--state")
            .arg(self.state())
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
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

struct Serving {
    child: Child,
    address: SocketAddr,
    said: String,
}

impl Serving {
    fn client(&self) -> Client {
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

    fn stop(mut self) -> i32 {
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

fn lines(rows: &[TrackRow]) -> Vec<String> {
    String::from_utf8(jsonl(rows).unwrap()).unwrap().lines().map(ToOwned::to_owned).collect()
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

    let date = std::fs::read_dir(&journal).unwrap().next().unwrap().unwrap().path();
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
    std::fs::write(world.state(), b"garbage").unwrap();
    let anew = world.serve(&world.policies[0], &[]);
    assert!(anew.said.contains("the day begins anew"), "{}", anew.said);
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

/// A queue of so many auction ads.
fn wide(entries: u64, ts_ms: u64) -> String {
    let queue: Vec<Value> = (0..entries)
        .map(|i| json!({"ad_id": 1_000_000 + i, "type": "A", "ecpm": 10.0, "pctr": 0.1, "filter": 0}))
        .collect();
    json!({"request_id": 1, "ts_ms": ts_ms, "slot_id": 1, "region": 1, "gender": 1, "age": 1, "queue": queue})
        .to_string()
}

#[test]
fn a_thousand_hostile_requests_get_the_right_answers_in_flat_memory() {
    let world = World::new();
    let rows = world.rows();
    let serving = world.serve(&world.policies[0], &["--patience", "600", "--connections", "64"]);
    let good = lines(&rows[..1]).remove(0);
    let ts = rows[0].ts_ms;
    let unknown = wide(1, ts).replace("\"A\"", "\"C\"");
    let many = format!("[{}]", vec![good.clone(); 257].join(","));
    let nan = good.replacen("\"ecpm\":", "\"ecpm\":NaN,\"x\":", 1);
    let huge = vec![b' '; 10 << 20];
    let deep = "[".repeat(100_000);
    let cases: Vec<(&str, &str, &[u8], u16)> = vec![
        ("POST", "/v1/score", b"{", 400),
        ("POST", "/v1/score", b"", 400),
        ("POST", "/v1/score", b"\xff\xfe\x00", 400),
        ("POST", "/v1/score", b"[1,2,3]", 400),
        ("POST", "/v1/score", deep.as_bytes(), 400),
        ("POST", "/v1/score", nan.as_bytes(), 400),
        ("POST", "/v1/score", unknown.as_bytes(), 400),
        ("POST", "/v1/score", many.as_bytes(), 413),
        ("POST", "/v1/exposures", b"{}", 400),
        ("POST", "/v1/exposures", br#"[{"request_id":-1,"ad_id":1,"ts_ms":1}]"#, 400),
        ("GET", "/v1/dictionary?ad_id=x", b"", 400),
        ("GET", "/v1/dictionary?ad_id=99999999&slot_id=1&pac_bucket=3", b"", 404),
        ("GET", "/v1/dictionary?ad_id=1&pac_bucket=999999", b"", 400),
        ("DELETE", "/v1/score", b"", 404),
        ("GET", "/../../etc/passwd", b"", 404),
    ];
    let wide_ok = wide(512, ts);
    let too_wide = wide(513, ts);
    let check = |method: &str, path: &str, body: &[u8], expected: u16| {
        let (status, answer) = serving.client().send(method, path, body).unwrap();
        let text = String::from_utf8_lossy(&answer);
        assert_eq!(status, expected, "{method} {path}: {text}");
        if status >= 400 {
            let error: Value = serde_json::from_slice(&answer).unwrap();
            assert!(error["error"].is_string() && error["where"].is_string(), "{text}");
        }
    };
    let mut sent = 0;
    let mut early = 0;
    while sent < 1000 {
        for (method, path, body, expected) in &cases {
            check(method, path, body, *expected);
            sent += 1;
        }
        check("POST", "/v1/score", wide_ok.as_bytes(), 200);
        check("POST", "/v1/score", too_wide.as_bytes(), 400);
        sent += 2;
        if sent % 10 == 0 || sent < 100 {
            // Ten megabytes; its sender gets to the answer.
            check("POST", "/v1/score", &huge, 413);
            sent += 1;
        }
        // Half a request, then the end: nobody is there to answer.
        let mut half = TcpStream::connect(serving.address).unwrap();
        half.write_all(b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").unwrap();
        half.shutdown(Shutdown::Both).unwrap();
        // A whole request, its sender's side closed: it is answered.
        let mut closed = TcpStream::connect(serving.address).unwrap();
        write!(closed, "POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{good}", good.len()).unwrap();
        closed.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        closed.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // No HTTP at all.
        let mut noise = TcpStream::connect(serving.address).unwrap();
        noise.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _ = noise.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
        sent += 3;
        if early == 0 && sent > 200 {
            early = serving.resident_kib();
        }
    }
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
    // A header that never ends, a body that never comes.
    let mut slow = TcpStream::connect(serving.address).unwrap();
    slow.write_all(b"POST /v1/score HTTP/1.1\r\nx: ").unwrap();
    let mut waiting = TcpStream::connect(serving.address).unwrap();
    waiting.write_all(b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n").unwrap();
    for (stream, starts) in [(&mut slow, ""), (&mut waiting, "HTTP/1.1 400")] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.starts_with(starts.as_bytes()), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(serving.client().send("GET", "/healthz", b"").unwrap().0, 200);
    assert_eq!(serving.stop(), 0);
}
