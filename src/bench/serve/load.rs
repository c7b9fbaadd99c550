//! An even load over several connections.
//!
//! Times count from when a request was due, not from when it could be sent: a server that stalls does not hide the requests that
//! it keeps waiting.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Serialize;

use super::client::Client;

/// How to load a server.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    pub address: SocketAddr,
    /// Bodies of requests, sent in this order again and again.
    pub lines: &'a [Vec<u8>],
    /// Requests a second, over all connections.
    pub rate: f64,
    pub connections: usize,
    /// Ends the load before its time; connections that break afterwards are no failures.
    pub stop: &'a AtomicBool,
}

/// What the clients saw.
#[derive(Default)]
pub struct Seen {
    /// Seconds from when a request was due to its answer.
    times: Vec<f64>,
    /// Answers other than 200, and connections that broke.
    pub failures: u64,
    /// When an answer chose a contract, in no order.
    pub contracts: Vec<Instant>,
    seconds: f64,
}

/// Times of answers under an even load.
#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    pub requests: u64,
    pub requests_per_second: f64,
    pub failures: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
}

impl Load<'_> {
    /// Loads the server for so many seconds or until it is told to stop.
    ///
    /// # Errors
    /// A server that cannot be reached.
    pub fn run(self, seconds: f64) -> anyhow::Result<Seen> {
        let started = Instant::now();
        let clients = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..self.connections)
                .map(|client| scope.spawn(move || self.client(client, started, seconds)))
                .collect();
            clients.into_iter().map(|client| client.join().expect("a client ends")).collect::<anyhow::Result<Vec<_>>>()
        })?;
        let mut all = Seen { seconds: started.elapsed().as_secs_f64(), ..Seen::default() };
        for seen in clients {
            all.times.extend(seen.times);
            all.contracts.extend(seen.contracts);
            all.failures += seen.failures;
        }
        Ok(all)
    }

    /// One client's share, evenly spread.
    fn client(self, client: usize, started: Instant, seconds: f64) -> anyhow::Result<Seen> {
        let mut connection = Client::connect(self.address).context("cannot connect")?;
        let mut seen = Seen::default();
        // Relaxed: a lone flag.
        let stopped = || self.stop.load(Ordering::Relaxed);
        for i in (client..).step_by(self.connections) {
            let due = i as f64 / self.rate;
            if due >= seconds || stopped() {
                break;
            }
            let wait = due - started.elapsed().as_secs_f64();
            if wait > 0.0 {
                std::thread::sleep(Duration::from_secs_f64(wait));
            }
            match connection.send("POST", "/v1/score", &self.lines[i % self.lines.len()]) {
                Ok((200, body)) => {
                    seen.times.push(started.elapsed().as_secs_f64() - due);
                    if is_contract(&body) {
                        seen.contracts.push(Instant::now());
                    }
                }
                Ok(_) => seen.failures += 1,
                Err(_) if stopped() => break,
                Err(_) => {
                    seen.failures += 1;
                    connection = Client::connect(self.address).context("cannot connect again")?;
                }
            }
        }
        Ok(seen)
    }
}

/// Whether an answer chose one of the contracts of [`super::super::world`], which have the small ids.
fn is_contract(body: &[u8]) -> bool {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let chosen = text.split_once("\"chosen\":").map_or("", |(_, rest)| rest);
    let digits = chosen.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse::<u64>().is_ok_and(|ad_id| (1..super::super::world::FIRST_AUCTION_AD).contains(&ad_id))
}

impl Seen {
    /// The distribution of the times.
    ///
    /// # Errors
    /// Nothing was answered.
    pub fn latency(mut self) -> anyhow::Result<Latency> {
        ensure!(!self.times.is_empty(), "no request was answered");
        self.times.sort_by(f64::total_cmp);
        let quantile = |share: f64| 1e3 * self.times[(share * (self.times.len() - 1) as f64) as usize];
        Ok(Latency {
            requests: self.times.len() as u64,
            requests_per_second: self.times.len() as f64 / self.seconds,
            failures: self.failures,
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            p999_ms: quantile(0.999),
            max_ms: quantile(1.0),
        })
    }
}
