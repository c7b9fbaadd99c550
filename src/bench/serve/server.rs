//! The real program, serving in a process of its own.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context as _, ensure};

use crate::bench::proc::{self, Usage};
use crate::bench::score::jsonl;
use crate::bench::world::{self, WorldSize};
use crate::log::schema::TrackRow;
use crate::log::{CompileOptions, RawDay};
use crate::policy::file::PolicyFile;
use crate::policy::start::initial_actor;
use crate::settings::Settings;
use crate::supervisor::children::this_program;

use super::client::Client;

/// A day, its requests as bodies, and two policies for it.
pub struct World {
    folder: tempfile::TempDir,
    pub lines: Vec<Vec<u8>>,
    /// Unix milliseconds of the first request.
    pub ts_ms: u64,
    policies: Vec<PathBuf>,
    servers: usize,
}

/// A server; killed when dropped.
pub struct Served {
    child: Child,
    pub address: SocketAddr,
    state: PathBuf,
    promoted: PathBuf,
}

impl World {
    /// Writes a day of `size` and untrained networks of the settings.
    ///
    /// # Errors
    /// A full disk.
    pub fn new(size: WorldSize, settings: &Settings) -> anyhow::Result<Self> {
        let folder = world::written(size)?;
        let (model, plan) = world::day(size)?;
        let spec = world::spec(&model, settings);
        let mut policies = Vec::new();
        for seed in [1, 2] {
            let path = folder.path().join(format!("policy-{seed}.safetensors"));
            // Another number of updates: the files must differ wherever the start is the one that comes with the program.
            let file =
                PolicyFile { spec: spec.clone(), plan: plan.clone(), actor: initial_actor(&spec, seed), updates: seed };
            file.write(&path)?;
            policies.push(path);
        }
        let rows: Vec<TrackRow> = RawDay::read(folder.path(), CompileOptions::default())?.rows;
        let ts_ms = rows.first().context("a day without requests")?.ts_ms;
        let lines = jsonl(&rows)?.split(|b| *b == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect();
        Ok(Self { folder, lines, ts_ms, policies, servers: 0 })
    }

    /// Starts a server that knows nothing of the earlier ones.
    ///
    /// # Errors
    /// A server that does not come up; with its own words.
    pub fn serve(&mut self, more: &[&str]) -> anyhow::Result<Served> {
        self.servers += 1;
        let of = |name: &str| self.folder.path().join(format!("{name}-{}", self.servers));
        let (state, promoted) = (of("state"), of("promoted.safetensors"));
        std::fs::copy(&self.policies[0], &promoted)?;
        let (child, address) = self.start("127.0.0.1:0", &state, &promoted, more)?;
        let served = Served { child, address, state, promoted };
        // The first prices of a day are solved in line. A server of today does that before it listens; this day is another.
        let (status, _) = Client::connect(address)?.send("POST", "/v1/score", &self.lines[0])?;
        ensure!(status == 200, "the first request is answered with {status}");
        Ok(served)
    }

    /// Kills a server where it stands and starts it again at the same address.
    ///
    /// # Errors
    /// A server that does not come up; with its own words.
    pub fn kill_and_restart(&self, mut served: Served) -> anyhow::Result<Served> {
        served.child.kill()?;
        served.child.wait()?;
        let (state, promoted) = (served.state.clone(), served.promoted.clone());
        let (child, address) = self.start(&served.address.to_string(), &state, &promoted, &[])?;
        Ok(Served { child, address, state, promoted })
    }

    /// Puts the policy that does not serve in place of the one that does; `turn` counts from 1.
    ///
    /// # Errors
    /// A full disk.
    pub fn promote(&self, served: &Served, turn: usize) -> anyhow::Result<()> {
        let next = served.promoted.with_extension("next");
        std::fs::copy(&self.policies[turn % 2], &next)?;
        Ok(std::fs::rename(&next, &served.promoted)?)
    }

    fn start(&self, listen: &str, state: &Path, policy: &Path, more: &[&str]) -> anyhow::Result<(Child, SocketAddr)> {
        let of = |name: &str| self.folder.path().join(name);
        let mut child = this_program()
            .args(["serve", "--listen", listen, "--policy"])
            .arg(policy)
            .arg("--control")
            .arg(of("control.tsv"))
            .arg("--day")
            .arg(of("day.toml"))
            .arg("--state")
            .arg(state)
            .arg("--journal")
            .arg(of("journal"))
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a server")?;
        let mut said = String::new();
        let mut lines = BufReader::new(child.stderr.take().context("its stderr is piped")?).lines();
        loop {
            let Some(line) = lines.next().transpose()? else {
                child.wait()?;
                anyhow::bail!("the server ended: {}", said.trim());
            };
            if let Some(address) = line.strip_prefix("listening on http://") {
                let address = address.parse()?;
                // Whoever writes to a closed pipe has an error on its hands.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok((child, address));
            }
            said = said + &line + "\n";
        }
    }
}

impl Served {
    /// What the kernel says of its process.
    ///
    /// # Errors
    /// It is gone.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        proc::usage(self.child.id()).context("the server is gone")
    }

    /// The sum of a metric over its labels that contain `label`.
    ///
    /// # Errors
    /// A server that does not answer.
    pub fn metric(&self, name: &str, label: &str) -> anyhow::Result<f64> {
        let (_, body) = Client::connect(self.address)?.send("GET", "/metrics", b"")?;
        let text = String::from_utf8(body)?;
        let values = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
        Ok(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Both fail when it is over already, as they should.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
