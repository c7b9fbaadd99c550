//! A real server on loopback beside its load generator: times of answers under an even load, while policies are swapped, among
//! hostile clients, and across a kill.

mod client;
pub mod hostile;
mod load;
mod server;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Serialize;

use crate::settings::Settings;

use super::world::WorldSize;
pub use client::Client;
use hostile::{Slow, Storm};
pub use load::Latency;
use load::{Load, Seen};
use server::{Served, World};

/// What to do to the server.
#[derive(Debug, Clone, Copy)]
pub struct ServeBench {
    pub size: WorldSize,
    /// Requests a second.
    pub rate: f64,
    pub connections: usize,
    /// Length of the even load.
    pub seconds: f64,
    /// Policies put in place under the load.
    pub swaps: usize,
    /// Hostile requests beside a tenth of the load.
    pub hostile: u64,
    /// Kills under the load, each with a restart.
    pub kills: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct ServeReport {
    pub queue: usize,
    pub connections: usize,
    pub wanted_per_second: f64,
    pub even: EvenLoad,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swapped: Option<Swapped>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostile: Option<Hostile>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kills: Vec<Restart>,
}

#[derive(Debug, Clone, Serialize)]
pub struct EvenLoad {
    #[serde(flatten)]
    pub latency: Latency,
    /// Prices solved anew meanwhile; a log's day passes by as fast as its requests are sent.
    pub replans: f64,
    /// Processor time of all threads of the server over the time of the load.
    pub cores: f64,
    pub resident_mb: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Swapped {
    /// What the server counts.
    pub swaps: f64,
    #[serde(flatten)]
    pub latency: Latency,
}

#[derive(Debug, Clone, Serialize)]
pub struct Hostile {
    #[serde(flatten)]
    pub storm: Storm,
    /// Of the good requests meanwhile.
    pub latency: Latency,
    /// Resident memory after a fifth of the hostile requests, and after all of them.
    pub early_mb: f64,
    pub late_mb: f64,
}

/// A killed server that came back.
#[derive(Debug, Clone, Serialize)]
pub struct Restart {
    /// From the kill to the first answer of the new process.
    pub away_s: f64,
    /// Contract impressions that clients had been told of, and how many of these the new process does not know.
    pub decided: usize,
    pub lost: usize,
    /// Age of the oldest lost one when the server was killed.
    pub lost_s: f64,
}

impl fmt::Display for ServeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |l: &Latency| {
            format!(
                "{} failures; p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, worst {:.1} ms",
                l.failures, l.p50_ms, l.p99_ms, l.p999_ms, l.max_ms
            )
        };
        let EvenLoad { latency, replans, cores, resident_mb } = &self.even;
        write!(
            f,
            "serve: {:.0} requests/s of {} candidates over {} connections ({:.0} wanted), {}; {replans:.0} replans beside; \
             {cores:.2} cores, {resident_mb:.0} MB",
            latency.requests_per_second,
            self.queue,
            self.connections,
            self.wanted_per_second,
            times(latency)
        )?;
        if let Some(Swapped { swaps, latency }) = &self.swapped {
            write!(f, "\nswaps: {swaps:.0} policies put in place under that load, {}", times(latency))?;
        }
        if let Some(Hostile { storm, latency, early_mb, late_mb }) = &self.hostile {
            write!(
                f,
                "\nhostile: {} requests of {} kinds, {} answered wrongly; memory {early_mb:.1} MB after a fifth of them, {late_mb:.1} MB \
                 at the end; of {} good ones meanwhile {}",
                storm.sent,
                storm.kinds.len(),
                storm.wrong.len(),
                latency.requests,
                times(latency)
            )?;
            for wrong in &storm.wrong {
                write!(f, "\n  {wrong}")?;
            }
        }
        for Restart { away_s, decided, lost, lost_s } in &self.kills {
            write!(
                f,
                "\nkilled: answers again after {away_s:.2} s; {lost} of {decided} contract impressions lost, the oldest {lost_s:.2} s old"
            )?;
        }
        Ok(())
    }
}

impl ServeBench {
    /// Starts a server for each part and does to it what is asked for.
    ///
    /// # Errors
    /// A server that does not come up or cannot be reached.
    pub fn run(&self, settings: &Settings) -> anyhow::Result<ServeReport> {
        let mut world = World::new(self.size, settings)?;
        say!("{:.0} requests/s for {} s", self.rate, self.seconds);
        let even = self.even(&mut world)?;
        let swapped = (self.swaps > 0).then(|| self.swap(&mut world)).transpose()?;
        let hostile = (self.hostile > 0).then(|| self.hostile(&mut world)).transpose()?;
        let kills = (0..self.kills).map(|_| self.kill(&mut world)).collect::<anyhow::Result<_>>()?;
        Ok(ServeReport {
            queue: self.size.queue,
            connections: self.connections,
            wanted_per_second: self.rate,
            even,
            swapped,
            hostile,
            kills,
        })
    }

    fn load<'a>(&self, world: &'a World, served: &Served, stop: &'a AtomicBool) -> Load<'a> {
        Load { address: served.address, lines: &world.lines, rate: self.rate, connections: self.connections, stop }
    }

    fn even(&self, world: &mut World) -> anyhow::Result<EvenLoad> {
        let served = world.serve(&[])?;
        let before = served.usage()?;
        let started = Instant::now();
        let seen = self.load(world, &served, &AtomicBool::new(false)).run(self.seconds)?;
        let elapsed = started.elapsed().as_secs_f64();
        let after = served.usage()?;
        Ok(EvenLoad {
            latency: seen.latency()?,
            replans: served.metric("admix_replans_total", "")?,
            cores: (after.cpu_s - before.cpu_s) / elapsed,
            resident_mb: after.resident_mb,
        })
    }

    /// Loads a server until `during` is done with it.
    fn loaded<T>(
        &self,
        load: Load,
        stop: &AtomicBool,
        during: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Seen)> {
        std::thread::scope(|scope| {
            let clients = scope.spawn(move || load.run(f64::INFINITY));
            let done = during();
            // Relaxed: a lone flag.
            stop.store(true, Ordering::Relaxed);
            let seen = clients.join().expect("the load ends");
            Ok((done?, seen?))
        })
    }

    fn swap(&self, world: &mut World) -> anyhow::Result<Swapped> {
        say!("{} policies put in place under that load", self.swaps);
        let served = world.serve(&[])?;
        let stop = AtomicBool::new(false);
        let ((), seen) = self.loaded(self.load(world, &served, &stop), &stop, || {
            for turn in 1..=self.swaps {
                world.promote(&served, turn)?;
                let began = Instant::now();
                while served.metric("admix_swaps_total", "")? < turn as f64 {
                    ensure!(
                        began.elapsed() < Duration::from_secs(60),
                        "policy {turn} was not put in place within a minute"
                    );
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            Ok(())
        })?;
        Ok(Swapped { swaps: served.metric("admix_swaps_total", "")?, latency: seen.latency()? })
    }

    fn hostile(&self, world: &mut World) -> anyhow::Result<Hostile> {
        say!("{} hostile requests beside a tenth of that load", self.hostile);
        let mut slow = Storm::default();
        let impatient = world.serve(&["--patience", "1"])?;
        Slow::open(impatient.address, 20)?.given_up(&mut slow);
        drop(impatient);
        // The large bodies take longer on a busy machine.
        let served = world.serve(&["--patience", "60"])?;
        let stop = AtomicBool::new(false);
        let load = Load { rate: 0.1 * self.rate, ..self.load(world, &served, &stop) };
        let good = std::str::from_utf8(&world.lines[0])?;
        let ((mut storm, early_mb), seen) = self.loaded(load, &stop, || {
            let mut early = None;
            let storm = hostile::storm(served.address, good, world.ts_ms, self.hostile, &mut |sent| {
                if early.is_none() && 5 * sent >= self.hostile {
                    early = served.usage().ok();
                }
            })?;
            Ok((storm, early.context("the server is gone")?.resident_mb))
        })?;
        storm.add(slow);
        Ok(Hostile { storm, latency: seen.latency()?, early_mb, late_mb: served.usage()?.resident_mb })
    }

    fn kill(&self, world: &mut World) -> anyhow::Result<Restart> {
        say!("a kill after 3 s of that load");
        let served = world.serve(&[])?;
        let stop = AtomicBool::new(false);
        let load = self.load(world, &served, &stop);
        let ((restarted, killed, away), seen) = self.loaded(load, &stop, || {
            std::thread::sleep(Duration::from_secs(3));
            stop.store(true, Ordering::Relaxed);
            let killed = Instant::now();
            let restarted = world.kill_and_restart(served)?;
            let (status, _) = Client::connect(restarted.address)?.send("GET", "/healthz", b"")?;
            ensure!(status == 200, "the server came back and answers {status}");
            Ok((restarted, killed, killed.elapsed()))
        })?;
        let mut decided = seen.contracts;
        decided.sort_unstable();
        let known = restarted.metric("admix_contract_delivered", "count=\"true\"")? as usize;
        let lost = decided.get(known..).unwrap_or_default();
        Ok(Restart {
            away_s: away.as_secs_f64(),
            decided: decided.len(),
            lost: lost.len(),
            lost_s: lost.first().map_or(0.0, |at| killed.saturating_duration_since(*at).as_secs_f64()),
        })
    }
}
