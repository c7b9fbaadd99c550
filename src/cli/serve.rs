//! `admix serve`: serves a policy over HTTP.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::log::keep;
use crate::score::ScoreOptions;
use crate::serve::{Limits, ServeOptions, Server};

use super::exit::{Exit, UsageError};
use super::numbers::some_seconds;
use super::score::Served;

#[derive(Debug, Args)]
#[command(
    after_help = "Routes: POST /v1/score, POST /v1/exposures, GET /v1/dictionary, GET /healthz, GET /metrics; docs/serving.md has \
    them.\nSIGHUP reads the policy again, SIGTERM and Ctrl-C end in order.\n\
    Without --day the server serves the UTC date at its start. JOBS/current.safetensors is the policy of a nightly job.\n\nExample:\n\n    \
    admix serve --policy jobs/current.safetensors --control today/control.tsv --day today/day.toml \\\n        --journal days/\n    \
    curl -s -d '{\"request_id\":1,\"ts_ms\":1773100801000,\"slot_id\":1,\"region\":3,\"gender\":1,\"age\":2,\n      \
    \"queue\":[{\"ad_id\":7,\"type\":\"C\",\"ecpm\":0,\"pctr\":0.004,\"filter\":0}]}' 127.0.0.1:8080/v1/score"
)]
pub struct Serve {
    #[command(flatten)]
    served: Served,
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Write requests and exposures as day directories, DIR/<date>
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// File that keeps the counts across restarts; default: .admix/serve.state beside the control table
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Take back a choice that no exposure confirms within this many seconds; deliveries are observed when confirmed. Default: a
    /// choice counts as shown
    #[arg(long, value_name = "SECONDS", value_parser = some_seconds)]
    confirm_within: Option<f64>,
    /// Maximum size of a body
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().body as u64, value_parser = clap::value_parser!(u64).range(1..=Limits::MOST_BODY as u64))]
    max_body: u64,
    /// Seconds for a header or a body to arrive, and for which an idle connection stays open
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = some_seconds)]
    patience: f64,
    /// Maximum number of connections; further ones are answered 503
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections as u64, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    connections: u64,
}

impl Serve {
    pub fn run(self) -> anyhow::Result<Exit> {
        let policy = self.served.open()?;
        policy.values(&self.served.values()).map_err(|e| UsageError(format!("{e:#}")))?;
        let state = match self.state {
            Some(state) => state,
            None => {
                let beside = self.served.control.parent().filter(|dir| !dir.as_os_str().is_empty());
                let folder = keep::folder(beside.unwrap_or(Path::new(".")));
                folder.context("nowhere to keep the counts: name a file with --state")?.join("serve.state")
            }
        };
        let (stop, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for (signal, flag) in [(SIGTERM, &stop), (SIGINT, &stop), (SIGHUP, &reload)] {
            signal_hook::flag::register(signal, flag.clone()).context("cannot handle signals")?;
        }
        let options = ServeOptions {
            policy: self.served.policy.clone(),
            plan: self.served.plan.clone(),
            files: self.served.files(),
            values: self.served.values(),
            score: ScoreOptions { confirm_within_s: self.confirm_within, ..self.served.options() },
            listen: self.listen,
            state: state.clone(),
            journal: self.journal,
            limits: Limits {
                body: self.max_body as usize,
                patience: Duration::from_secs_f64(self.patience),
                connections: self.connections as usize,
            },
        };
        let mut begun = false;
        let server = Server::open(options, |scorer| {
            begun = true;
            self.served.begin(scorer)
        })?;
        if self.served.delivered.is_some() && !begun {
            tracing::warn!("--delivered is not used: {} has counts of this day", state.display());
        }
        say!("listening on http://{}", server.address()?);
        server.run(stop, reload)?;
        Ok(Exit::Done)
    }
}
