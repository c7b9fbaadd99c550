//! A server under an even load on loopback, beside its load generator: the times of answers, replanning and swaps included.
//!
//! Times count from when a request was due, not from when it could be sent: a server that stalls does not hide the requests
//! that it keeps waiting.

use std::fmt;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Serialize;

use crate::log::{CompileOptions, RawDay};
use crate::policy::file::PolicyFile;
use crate::score::{DayFiles, ScoreOptions};
use crate::serve::{Limits, ServeOptions, Server};
use crate::settings::Settings;

use super::score::jsonl;
use super::world::{self, WorldSize};

#[derive(Debug, Clone, Serialize)]
pub struct ServeReport {
    pub queue: usize,
    pub connections: usize,
    pub seconds: f64,
    pub requests: u64,
    pub requests_per_second: f64,
    pub wanted_per_second: f64,
    /// Answers other than 200, and connections that broke.
    pub failures: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
    /// Seconds of processor time of the serving thread and its helpers over the seconds of the run, generator included.
    pub cores: f64,
}

impl fmt::Display for ServeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "serve: {:.0} requests/s of {} candidates over {} connections ({:.0} wanted), {} failures; p50 {:.2} ms, p99 {:.2} ms, \
             p99.9 {:.2} ms, worst {:.1} ms; {:.2} cores with the load generator",
            self.requests_per_second,
            self.queue,
            self.connections,
            self.wanted_per_second,
            self.failures,
            self.p50_ms,
            self.p99_ms,
            self.p999_ms,
            self.max_ms,
            self.cores
        )
    }
}

/// One keep-alive connection that posts requests.
pub struct Client {
    stream: BufReader<TcpStream>,
    buffer: Vec<u8>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self { stream: BufReader::new(stream), buffer: Vec::new() })
    }

    /// Sends a request and reads the answer: its status and body.
    pub fn send(&mut self, method: &str, path: &str, body: &[u8]) -> std::io::Result<(u16, Vec<u8>)> {
        self.buffer.clear();
        write!(self.buffer, "{method} {path} HTTP/1.1\r\nhost: admix\r\ncontent-length: {}\r\n\r\n", body.len())?;
        self.buffer.extend_from_slice(body);
        self.stream.get_mut().write_all(&self.buffer)?;
        self.answer()
    }

    /// Reads an answer.
    pub fn answer(&mut self) -> std::io::Result<(u16, Vec<u8>)> {
        let broken = || std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the connection ended within an answer");
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
        let mut length = 0;
        loop {
            line.clear();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(broken());
            }
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().map_err(|_| broken())?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((status, body))
    }
}

/// Loads a server with `rate` requests a second of `size` for `seconds`.
pub fn run(
    size: WorldSize,
    settings: &Settings,
    rate: f64,
    connections: usize,
    seconds: f64,
) -> anyhow::Result<ServeReport> {
    let dir = world::written(size)?;
    let (model, plan) = world::day(size)?;
    let spec = world::spec(&model, settings);
    let actor = spec.initial_actor(1);
    let path = dir.path();
    let policy = path.join("policy.safetensors");
    PolicyFile { spec, plan, actor, updates: 0 }.write(&policy)?;
    let rows = RawDay::read(path, CompileOptions::default())?.rows;
    let lines: Vec<Vec<u8>> = jsonl(&rows)?.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
    let options = ServeOptions {
        policy: policy.to_string_lossy().into_owned(),
        plan: None,
        files: DayFiles { control: path.join("control.tsv"), inventory: None, day: Some(path.join("day.toml")) },
        score: ScoreOptions::default(),
        listen: "127.0.0.1:0".parse()?,
        state: path.join("serve.state"),
        journal: Some(path.join("journal")),
        limits: Limits::default(),
    };
    let server = Server::open(options, |_| Ok(()))?;
    let address = server.address()?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let serving = std::thread::spawn(move || server.run(told, Arc::default()));
    let (lines, used) = (&lines, cpu_seconds());
    let started = Instant::now();
    let results = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..connections)
            .map(|client| scope.spawn(move || load(address, lines, (client, connections), rate, seconds)))
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client ends")).collect::<anyhow::Result<Vec<_>>>()
    })?;
    let elapsed = started.elapsed().as_secs_f64();
    let cores = (cpu_seconds() - used) / elapsed;
    stop.store(true, Ordering::Relaxed);
    serving.join().expect("the server ends")?;
    let failures = results.iter().map(|(_, failures)| failures).sum();
    let mut times: Vec<f64> = results.into_iter().flat_map(|(times, _)| times).collect();
    ensure!(!times.is_empty(), "no request was answered");
    times.sort_by(f64::total_cmp);
    let quantile = |share: f64| 1e3 * times[(share * (times.len() - 1) as f64) as usize];
    Ok(ServeReport {
        queue: size.queue,
        connections,
        seconds: elapsed,
        requests: times.len() as u64,
        requests_per_second: times.len() as f64 / elapsed,
        wanted_per_second: rate,
        failures,
        p50_ms: quantile(0.5),
        p99_ms: quantile(0.99),
        p999_ms: quantile(0.999),
        max_ms: quantile(1.0),
        cores,
    })
}

/// Seconds that this process has computed.
fn cpu_seconds() -> f64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID);
    time.map_or(0.0, |time| time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9)
}

/// One client's share of the load, evenly spread; the days' requests again and again. Times in seconds, and failures.
fn load(
    address: SocketAddr,
    lines: &[Vec<u8>],
    (client, clients): (usize, usize),
    rate: f64,
    seconds: f64,
) -> anyhow::Result<(Vec<f64>, u64)> {
    let mut connection = Client::connect(address).context("cannot connect")?;
    let (mut times, mut failures) = (Vec::new(), 0);
    let started = Instant::now();
    for i in (client..).step_by(clients) {
        let due = i as f64 / rate;
        if due >= seconds {
            break;
        }
        let wait = due - started.elapsed().as_secs_f64();
        if wait > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(wait));
        }
        match connection.send("POST", "/v1/score", &lines[i % (lines.len() - 1)]) {
            Ok((200, _)) => times.push(started.elapsed().as_secs_f64() - due),
            Ok(_) => failures += 1,
            Err(_) => {
                failures += 1;
                connection = Client::connect(address)?;
            }
        }
    }
    Ok((times, failures))
}
