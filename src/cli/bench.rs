//! `admix bench`: benchmarks of single stages.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Deserialize as _;
use serde::de::value::StrDeserializer;

use crate::bench::collectives::{self, CollectivesBench};
use crate::bench::params::{ParamsBench, run_params};
use crate::bench::ring::{RingBench, run_ring};
use crate::bench::serve::ServeBench;
use crate::bench::table::{self, TableBench, run_table};
use crate::bench::world::WorldSize;
use crate::bench::{actor, e2e, env, evaluate, ingest, learner, plan, score, speedup, start};
use crate::gpu::Device;
use crate::learner::device;
use crate::settings::{Critic, MOST_DEVICES, RowOptimizer, Settings};

use super::exit::{Exit, UsageError};
use super::output::{print_json, print_text};

#[derive(Debug, Args)]
#[command(after_help = "BENCHMARKS.md has figures with their commands.\n\nExample: admix bench actor --json")]
pub struct Bench {
    #[command(subcommand)]
    stage: Stage,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Stage {
    /// Environment steps per second on one core, with a trivial policy
    #[command(after_help = "Example: admix bench env --seconds 10")]
    Env(Day),
    /// Decisions per second of an actor on one core, and the cost of encoding and decoding its blocks
    #[command(after_help = "Example: admix bench actor --contracts 30")]
    Actor(Day),
    /// Seconds to evaluate parameters on a day of 60,000 requests on one core: replanning, network, replay
    #[command(after_help = "Example: admix bench evaluate")]
    Evaluate(Day),
    /// Time to score a request on one core, and candidates per second from text to text
    #[command(after_help = "Example: admix bench score --queue 16")]
    Score {
        #[command(flatten)]
        day: Day,
        /// Decide at the values of a run of `admix values train`
        #[arg(long, value_name = "RUN_DIR")]
        values: Option<PathBuf>,
    },
    /// A server in its own process, with the load generator beside it: a constant load, policies swapped under it, hostile
    /// requests, kills and restarts
    #[command(after_help = "Example: admix bench serve --seconds 10 --swaps 100")]
    Serve(ServeArguments),
    /// Sample ring between two processes, beside memcpy
    #[command(after_help = "Example: admix bench ring --records 100000000")]
    Ring {
        /// Records of 256 bytes
        #[arg(long, default_value_t = 4_000_000)]
        records: u64,
        /// Regions of 512 KB
        #[arg(long, default_value_t = 2)]
        regions: usize,
    },
    /// Parameter publications under the load of reader processes
    #[command(after_help = "Example: admix bench params --json")]
    Params {
        #[arg(long, default_value_t = 1_000_000)]
        publications: u64,
        /// Words of 4 bytes in a publication
        #[arg(long, default_value_t = 16_384)]
        words: usize,
        #[arg(long, default_value_t = 2)]
        readers: usize,
    },
    /// All-reduce between ranks of this machine, beside MPI's own where it is installed
    #[command(after_help = "Example: admix bench collectives --ranks 2 --ranks 4")]
    Collectives(CollectivesArguments),
    /// Whole training in processes beside the serial mode: time to the same validation share
    #[command(after_help = "Example: admix bench speedup --config configs/quickstart.toml --seeds 3")]
    Speedup {
        /// Configuration to train
        #[arg(long)]
        config: PathBuf,
        /// Set a configuration key in both
        #[arg(long = "set", value_name = "KEY=VALUE")]
        sets: Vec<String>,
        /// Seeds 1..=N
        #[arg(long, default_value_t = 3)]
        seeds: u64,
    },
    /// Learner updates per second, or with --losses the losses of updates on fixed generated data
    #[command(after_help = "Example: admix bench learner --requests-per-step 30 --ad-embedding 0 --threads 2")]
    Learner(LearnerArguments),
    /// From the rings into the learner's pool: take, verify, decode, check, keep, and on a GPU replay and upload; beside memcpy of
    /// the same bytes
    #[command(after_help = "Example: admix bench ingest --requests-per-step 1")]
    Ingest(IngestArguments),
    /// From process start to the first block of samples: the first start, then with compiled logs and plan in their caches
    #[command(after_help = "Example: admix bench start --config configs/quickstart.toml --starts 7")]
    Start {
        #[command(flatten)]
        task: TaskArguments,
        /// Number of starts with caches
        #[arg(long, default_value_t = 5)]
        starts: usize,
    },
    /// A whole training in processes: speed, and time, memory and files of every process
    #[command(after_help = "Example: admix bench e2e --seconds 60")]
    E2e {
        #[command(flatten)]
        task: TaskArguments,
        /// Length of the training
        #[arg(long, default_value_t = 60.0)]
        seconds: f64,
        /// Seconds for which the same learner then runs alone on a full pool, to measure the cost of being fed by actors. Where
        /// actors are too slow for it, --set a smaller learner.samples_per_update
        #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
        alone: f64,
    },
    /// Updates of the value model per second, with rows on the same thread, on a separate one and in a cache; rows found per second
    #[command(after_help = "Example: admix bench table --rows 1000000")]
    Table(TableArguments),
    /// Planning a generated day: graph, HWM, SHALE, unavoidable shortage, beside one pass over all pairs
    #[command(after_help = "Example: admix bench plan --contracts 1000")]
    Plan {
        #[arg(long, default_value_t = 1000)]
        contracts: usize,
        /// Forecast nodes, each with different attributes
        #[arg(long, default_value_t = 100_000, value_parser = nodes)]
        nodes: usize,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Number of runs; the fastest counts for each stage
        #[arg(long, default_value_t = 3)]
        runs: usize,
    },
}

#[derive(Debug, Args)]
struct TaskArguments {
    /// Configuration to train; default: the built-in defaults, on a generated world
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set a configuration key
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Requests per day of the generated world
    #[arg(long, default_value_t = 60_000, conflicts_with = "config")]
    requests: u32,
}

#[derive(Debug, Args)]
struct Day {
    /// Entries per queue
    #[arg(long, default_value_t = 16)]
    queue: usize,
    /// Contracts among them
    #[arg(long, default_value_t = 6)]
    eligible: usize,
    /// Contracts of the day
    #[arg(long, default_value_t = 30)]
    contracts: usize,
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

impl Day {
    fn size(&self) -> WorldSize {
        WorldSize {
            requests: 60_000,
            queue: self.queue,
            eligible: self.eligible,
            masked: 0.0,
            contracts: self.contracts,
        }
    }
}

#[derive(Debug, Args)]
struct ServeArguments {
    #[command(flatten)]
    day: Day,
    /// Requests per second
    #[arg(long, default_value_t = 5000.0, value_parser = rate)]
    rate: f64,
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// Policies swapped under the load; 0 skips this
    #[arg(long, default_value_t = 100)]
    swaps: usize,
    /// Hostile requests; 0 skips this
    #[arg(long, default_value_t = 1000)]
    hostile: u64,
    /// Kills after three seconds of the load; 0 skips this
    #[arg(long, default_value_t = 3)]
    kills: usize,
}

impl ServeArguments {
    fn bench(&self) -> ServeBench {
        ServeBench {
            size: self.day.size(),
            rate: self.rate,
            connections: usize::from(self.connections),
            seconds: self.day.seconds,
            swaps: self.swaps,
            hostile: self.hostile,
            kills: self.kills,
        }
    }
}

#[derive(Debug, Args)]
struct CollectivesArguments {
    /// Number of processes; may be given several times
    #[arg(long, default_values_t = [2, 4], value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: Vec<u16>,
    /// Bytes of the vector of floats
    #[arg(long, default_value_t = 1 << 20)]
    bytes: usize,
    #[arg(long, default_value_t = 1000)]
    rounds: usize,
    /// Skip MPI
    #[arg(long)]
    no_mpi: bool,
    /// Average by NCCL, with GPU K for rank K
    #[arg(long)]
    nccl: bool,
}

impl CollectivesArguments {
    fn bench(&self) -> CollectivesBench {
        CollectivesBench {
            ranks: self.ranks.iter().map(|ranks| usize::from(*ranks)).collect(),
            bytes: self.bytes,
            rounds: self.rounds,
            mpi: !self.no_mpi,
            nccl: self.nccl,
        }
    }
}

#[derive(Debug, Args)]
struct LearnerArguments {
    /// Contracts of the day
    #[arg(long, default_value_t = 30)]
    contracts: usize,
    /// Contracts that a request may show, at most
    #[arg(long, default_value_t = 8)]
    eligible: usize,
    /// Probability that one of these may not be shown; the peer masks as many
    #[arg(long, default_value_t = 0.2, value_parser = share)]
    masked: f64,
    /// States in a batch
    #[arg(long, default_value_t = 512)]
    batch: usize,
    /// Requests per step; more than one give each step a row for every contract
    #[arg(long, default_value_t = 1)]
    requests_per_step: usize,
    /// Width of the ad id embedding
    #[arg(long, default_value_t = 4)]
    ad_embedding: usize,
    /// Width of the actor's hidden layers; the critic's are half as wide
    #[arg(long, default_value_t = 64)]
    hidden: usize,
    /// quantile, categorical or scalar
    #[arg(long, default_value = "quantile", value_parser = critic)]
    critic: Critic,
    /// Threads of the tensor operations; 0 = one per core
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// auto, cpu, cuda or cuda:INDEX
    #[arg(long, default_value = "auto")]
    device: String,
    /// Print the losses of N updates instead, for comparing devices: the data depend only on the other arguments
    #[arg(long, value_name = "N")]
    losses: Option<usize>,
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

impl LearnerArguments {
    fn size(&self) -> WorldSize {
        WorldSize {
            requests: 60_000,
            queue: self.eligible + 8,
            eligible: self.eligible,
            masked: self.masked,
            contracts: self.contracts,
        }
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.learner.batch = self.batch;
        settings.episodes.requests_per_step = self.requests_per_step;
        settings.policy.ad_embedding = self.ad_embedding;
        settings.learner.critic = self.critic;
        settings.learner.critic_hidden = (self.hidden / 2).max(1);
        settings.policy.hidden = self.hidden;
        settings.run.device.clone_from(&self.device);
        settings
    }
}

#[derive(Debug, Args)]
struct IngestArguments {
    /// auto, cpu, cuda or cuda:INDEX
    #[arg(long, default_value = "auto")]
    device: String,
    /// Requests per step
    #[arg(long, default_value_t = 30)]
    requests_per_step: usize,
    /// Contracts of the day
    #[arg(long, default_value_t = 30)]
    contracts: usize,
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

impl IngestArguments {
    fn size(&self) -> WorldSize {
        WorldSize {
            requests: 60_000,
            queue: 16,
            eligible: 6.min(self.contracts),
            masked: 0.0,
            contracts: self.contracts,
        }
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.run.device.clone_from(&self.device);
        settings.episodes.requests_per_step = self.requests_per_step;
        settings
    }
}

#[derive(Debug, Args)]
struct TableArguments {
    #[arg(long, default_value_t = 1_000_000)]
    rows: usize,
    #[arg(long, default_value_t = 4096)]
    batch: usize,
    /// Batches made beforehand, which come again in turn
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    batches: u32,
    #[arg(long, default_value_t = 8)]
    fields: usize,
    /// Floats of a row that are used in products
    #[arg(long, default_value_t = 16)]
    dim: usize,
    /// Exponent of the ids' popularity
    #[arg(long, default_value_t = 1.05)]
    zipf: f64,
    /// Rows of the cache; 0 = none
    #[arg(long, default_value_t = 0)]
    cache_rows: usize,
    /// Batches whose rows are fetched ahead
    #[arg(long, default_value_t = 2)]
    prefetch: usize,
    /// How long each form is measured, in each round where forms take turns
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds in which flat table and cache take turns, and the forms on a GPU; medians are shown
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Accesses for which cache hits are counted, after three times as many to warm it; 0 = none
    #[arg(long, default_value_t = 0)]
    accesses: usize,
    /// Also measure network and rows on this device: cpu, cuda, cuda:INDEX. All rows lie there; with --cache-rows a cache of them is
    /// measured beside, and both with nothing fetched ahead, too
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Arenas of the cache; on GPUs each on a device of its own, from --device on
    #[arg(long, default_value_t = 1, value_parser = arenas)]
    devices: usize,
    /// With --losses: rows and parameters stay on the host, as with several ranks, and the device computes gradients alone
    #[arg(long, requires = "losses", conflicts_with_all = ["cache_rows", "devices"])]
    host_rows: bool,
    /// Print the losses of so many updates on fixed data instead, to compare devices
    #[arg(long, value_name = "UPDATES")]
    losses: Option<usize>,
    /// Also write the rows to this file, which a run can begin with (values.from): a table of any size
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
}

impl TableArguments {
    fn bench(&self) -> anyhow::Result<TableBench> {
        let device = Device::untried(&self.device, self.devices).map_err(|e| UsageError(e.to_string()))?;
        Ok(TableBench {
            rows: self.rows,
            batch: self.batch,
            batches: self.batches as usize,
            fields: self.fields,
            dim: self.dim,
            zipf: self.zipf,
            optimizer: RowOptimizer::RowwiseAdagrad,
            cache_rows: self.cache_rows,
            prefetch: self.prefetch,
            device,
            devices: self.devices,
            host_rows: self.host_rows,
            seconds: self.seconds,
            rounds: self.rounds as usize,
            accesses: self.accesses,
            dump: self.dump.clone(),
        })
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "is not a number")?;
    if rate > 0.0 && rate <= 1e6 { Ok(rate) } else { Err("use more than 0 and at most 1000000".into()) }
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "is not a number")?;
    if (0.0..1.0).contains(&share) { Ok(share) } else { Err("use 0 to less than 1".into()) }
}

fn nodes(text: &str) -> Result<usize, String> {
    let nodes = text.parse().map_err(|_| "is not a whole number")?;
    if (1..=plan::MOST_NODES).contains(&nodes) { Ok(nodes) } else { Err(format!("use 1 to {}", plan::MOST_NODES)) }
}

fn arenas(text: &str) -> Result<usize, String> {
    let devices = text.parse().map_err(|_| "is not a whole number")?;
    if (1..=MOST_DEVICES).contains(&devices) { Ok(devices) } else { Err(format!("use 1 to {MOST_DEVICES}")) }
}

/// Parses the name of a critic as in the configuration.
fn critic(text: &str) -> Result<Critic, String> {
    let name = StrDeserializer::<serde::de::value::Error>::new(text);
    Critic::deserialize(name).map_err(|unknown| unknown.to_string())
}

impl Bench {
    pub fn run(self) -> anyhow::Result<Exit> {
        match &self.stage {
            Stage::Env(day) => self.print(&env::run(day.size(), day.seconds)?),
            Stage::Actor(day) => self.print(&actor::run(day.size(), &Settings::default(), day.seconds)?),
            Stage::Evaluate(day) => self.print(&evaluate::run(day.size(), &Settings::default(), day.seconds)?),
            Stage::Score { day, values } => {
                self.print(&score::run(day.size(), &Settings::default(), values.as_deref())?)
            }
            Stage::Serve(a) => self.print(&a.bench().run(&Settings::default())?),
            Stage::Ring { records, regions } => self.print(&run_ring(&RingBench {
                records: *records,
                regions: *regions,
                idle: Duration::from_secs(2),
            })?),
            Stage::Params { publications, words, readers } => {
                self.print(&run_params(&ParamsBench { publications: *publications, words: *words, readers: *readers })?)
            }
            Stage::Collectives(a) => self.print(&collectives::run(&a.bench())?),
            Stage::Table(a) => match a.losses {
                Some(updates) => self.print(&table::losses(&a.bench()?, updates)?),
                None => self.print(&run_table(&a.bench()?)?),
            },
            Stage::Speedup { config, sets, seeds } => self.print(&speedup::run(config, sets, *seeds)?),
            Stage::Plan { contracts, nodes, seed, runs } => self.print(&plan::run(*contracts, *nodes, *seed, *runs)),
            Stage::Learner(a) => {
                device::set_threads(a.threads);
                match a.losses {
                    Some(updates) => self.print(&learner::losses(a.size(), &a.settings(), updates)?),
                    None => self.print(&learner::run(a.size(), &a.settings(), a.seconds)?),
                }
            }
            Stage::Ingest(a) => self.print(&ingest::run(a.size(), &a.settings(), a.seconds)?),
            Stage::Start { task, starts } => {
                self.print(&start::run(task.config.as_deref(), &task.sets, task.requests, *starts)?)
            }
            Stage::E2e { task, seconds, alone } => {
                self.print(&e2e::run(task.config.as_deref(), &task.sets, task.requests, (*seconds, *alone))?)
            }
        }
    }

    fn print<R: serde::Serialize + std::fmt::Display>(&self, report: &R) -> anyhow::Result<Exit> {
        if self.json {
            print_json(report)?;
        } else {
            print_text(&format!("{report}\n"))?;
        }
        Ok(Exit::Done)
    }
}
