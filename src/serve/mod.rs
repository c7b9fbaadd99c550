//! A feature server for those who have none: requests over HTTP, scores and the chosen ad back.
//!
//! One thread answers requests, as scoring one costs microseconds; what takes longer happens beside it. Prices are solved on the
//! replanner's thread, a newly promoted policy is read and begun on the keeper's, which also saves the counts every second, and
//! rows for tomorrow's training are written on the journal's. The lock on the [`crate::score::Scorer`] is held for single decisions and for
//! copies of counters alone.
//!
//! | file | what it is |
//! |---|---|
//! | `options` | how to serve: policy, day, address, limits of a client |
//! | `http` | connections, limits and routes |
//! | `engine` | [`Engine`], what the routes do, without HTTP; which times of requests are refused |
//! | `error` | [`ApiError`], an error as clients see it |
//! | `keeper` | what is done beside serving: counts saved every second, a new policy put in place |
//! | `journal` | day directories of what came in and what was shown |
//! | `metrics` | counters of a server, in the text format of Prometheus |

mod engine;
mod error;
mod http;
mod journal;
mod keeper;
mod metrics;
mod options;

use std::fs::File;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use anyhow::Context as _;

use crate::score::{ScoreOptions, Scorer, ServedDay, ServedPolicy};

pub use engine::Engine;
pub use error::ApiError;
use journal::Journal;
use keeper::Keeper;
pub use options::{Limits, ServeOptions};

/// By how much the replanner's thread steps behind the others.
const NICENESS: i32 = 10;

/// A server that listens.
pub struct Server {
    listener: std::net::TcpListener,
    engine: Arc<Engine>,
    keeper: Keeper,
    limits: Limits,
    /// Of the counts: another server would overwrite them.
    _lock: File,
}

impl Server {
    /// Opens policy and day, takes over the counts of an earlier server of this day and listens. `begin` sets the counts where there
    /// was none.
    ///
    /// # Errors
    /// A policy, a file or an address that cannot be used.
    pub fn open(
        mut options: ServeOptions,
        begin: impl FnOnce(&mut Scorer) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let started = Instant::now();
        let now_ms = engine::now_ms();
        let seen = keeper::stamp(&options);
        let policy = ServedPolicy::open(&options.policy, options.plan.as_deref())?;
        let told = policy.values(&options.values)?;
        policy.log_values(&told);
        let day = ServedDay::read(&options.files, now_ms)?.told(&told);
        if let Some(new) = day.new_to(&policy) {
            tracing::warn!("{new}");
        }
        options.score = ScoreOptions { exposures: true, stateless: false, ..options.score };
        let lock = keeper::lock(&options.state)?;
        let mut scorer = Scorer::new(&day, &policy, options.score)?;
        if !keeper::take_over(&mut scorer, &options.state)? {
            begin(&mut scorer)?;
        }
        if day.day.contains(now_ms) {
            // The first request should not wait for the first prices; a log that is replayed has other times.
            scorer.warm(now_ms - day.day.start_ms);
        }
        scorer.hand_out(true);
        let listener = std::net::TcpListener::bind(options.listen)
            .with_context(|| format!("cannot listen on {}; choose another address with --listen", options.listen))?;
        listener.set_nonblocking(true)?;
        let journal = match &options.journal {
            Some(folder) => Some(Journal::open(folder, &day, &options.files)?),
            None => None,
        };
        let (errands, to_run) = mpsc::channel();
        let engine = Arc::new(Engine::new(day.day.clone(), scorer, errands, journal));
        let replanning = engine.clone();
        std::thread::Builder::new().name("replanner".into()).spawn(move || {
            // Answers come first: a solution may wait for a core.
            if let Err(e) = rustix::process::nice(NICENESS) {
                tracing::warn!("replanning keeps its priority: {e}");
            }
            for errand in to_run {
                let done = errand.run();
                replanning.finish(done);
            }
        })?;
        tracing::info!(
            "serving {} on {} with {}, {} contracts, ready after {:.2} s",
            day.day.date,
            listener.local_addr()?,
            policy.version,
            day.contracts.len(),
            started.elapsed().as_secs_f64()
        );
        let limits = options.limits;
        let keeper = Keeper::new(engine.clone(), day, options, seen);
        Ok(Self { listener, keeper, engine, limits, _lock: lock })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// A socket that the system took away.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stop` is set, then ends the requests under way and saves the counts. `reload` asks for the policy to be read
    /// again; it is also read when its file changes.
    ///
    /// # Errors
    /// A thread that cannot be started, a listener that cannot be used, counts that cannot be saved.
    pub fn run(self, stop: Arc<AtomicBool>, reload: Arc<AtomicBool>) -> anyhow::Result<()> {
        let ended = Arc::new(AtomicBool::new(false));
        let (mut keeper, told) = (self.keeper, ended.clone());
        let keeping = std::thread::Builder::new().name("keeper".into()).spawn(move || {
            // Relaxed: a lone flag, read in a polling loop.
            while !told.load(Ordering::Relaxed) {
                keeper.tend(&reload);
                std::thread::sleep(keeper::INTERVAL);
            }
            keeper.save()
        })?;
        // However it ends, the counts are saved and the journal is closed.
        let served = http::serve(self.listener, self.engine.clone(), self.limits, &stop);
        ended.store(true, Ordering::Relaxed);
        let saved = keeping.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the keeper ended early")));
        self.engine.close();
        served.and(saved)
    }
}
