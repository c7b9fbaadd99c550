//! `admix data`: generates, imports and checks log directories.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::log::check::check;
use crate::log::import::{ImportReport, ipinyou, tencent2019};
use crate::log::sample::{self, Sampling};
use crate::log::wander::Wander;
use crate::log::{CompileOptions, table};
use crate::synth::{self, WorldSettings};

use super::exit::{Exit, UsageError};
use super::numbers::{seconds, share};
use super::output::{print_json, print_text};

#[derive(Debug, Subcommand)]
pub enum Data {
    /// Write days of a synthetic world: DIR/day-0 .. day-(N-1)
    #[command(
        after_help = "Example: admix data synth --config configs/synth/sample.toml --days 5 --seed 7 --out world"
    )]
    Synth(Synth),
    /// Rewrite a real log as log directories
    #[command(
        subcommand,
        after_help = "Example: admix data import ipinyou --impressions imp.weekday0.csv.gz \\\n    --control control.tsv --out logs/ipinyou"
    )]
    Import(Import),
    /// Check log directories: bad rows, units, contracts, coverage; also compiles them
    #[command(after_help = "docs/formats.md has every column with its unit, and what each warning means.\n\n\
                            Example: admix data check logs/2026-01-05 logs/2026-01-06 --json | jq '.warnings[].name'")]
    Check(Check),
    /// Write a smaller day: requests sampled by the hash of their ids, demands and forecast scaled alike
    #[command(
        after_help = "A request is kept iff hash64(seed, request_id, 0) / 2^64 < rate (docs/large-days.md has the hash), so days and \
                            tables sampled with one seed fit together. Contracts of which nothing is required any more are named.\n\n\
                            Example: admix data sample logs/2026-01-05 --rate 0.01 --seed 7 --out sample/2026-01-05"
    )]
    Sample(Sample),
}

#[derive(Debug, Args)]
pub struct Sample {
    /// The log directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Share of the requests to keep, above 0 and up to 1
    #[arg(long, value_name = "R")]
    rate: f64,
    /// Seed of the draw
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Directory of the smaller day
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Share of bad track rows above which the day is refused
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = share)]
    max_bad_share: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct Synth {
    /// World file (TOML); configs/synth/ has examples
    #[arg(long, value_name = "FILE", required_unless_present = "like")]
    config: Option<PathBuf>,
    /// Make a world like these days, two or more log directories: they determine its size, prices, contracts and variation; the
    /// rest comes from the world file, or from the defaults
    #[arg(long, value_name = "DIR", num_args = 1..)]
    like: Vec<PathBuf>,
    /// Directory of the days
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Number of days, instead of the world file's
    #[arg(long, value_name = "N")]
    days: Option<u32>,
    /// Seed, instead of the world file's
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Write queues that hold only the entry shown: for learning values from more exposures than whole queues allow
    #[arg(long)]
    exposures_only: bool,
    /// Write track_log as Parquet, like `compress = "parquet"` in the world file: for days of millions of requests
    #[arg(long)]
    parquet: bool,
}

#[derive(Debug, Subcommand)]
pub enum Import {
    /// Requests of the 2019 Tencent ads algorithm contest, with their whole queues
    #[command(
        after_help = "Example: admix data import tencent2019 --track-log track_log.tsv.gz \\\n    --contracts-from-log 10 --out logs/tencent"
    )]
    Tencent2019(Tencent2019),
    /// iPinYou RTB impressions, one log directory per weekday
    #[command(
        after_help = "Example: admix data import ipinyou --impressions imp.weekday0.csv.gz \\\n    --control control.tsv --out logs/ipinyou"
    )]
    Ipinyou(Ipinyou),
}

#[derive(Debug, Args)]
pub struct Tencent2019 {
    /// The raw track log (.tsv, .gz or .zst)
    #[arg(long, value_name = "FILE")]
    track_log: PathBuf,
    /// Contracts as a control table
    #[arg(long, value_name = "FILE", required_unless_present = "contracts_from_log")]
    control: Option<PathBuf>,
    /// Declare the N most frequent CPM-billed ads to be contracts
    #[arg(long, value_name = "N", conflicts_with = "control")]
    contracts_from_log: Option<usize>,
    /// Share of the requests in which it may be shown that a declared contract requires
    #[arg(long, value_name = "F", default_value_t = 0.3)]
    fill: f64,
    /// Write part-0 (the first N requests) and part-1 (the rest) instead of one directory
    #[arg(long, value_name = "N")]
    split: Option<usize>,
    /// Directory of the log
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Share of dropped rows above which nothing is imported
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = share)]
    max_bad_share: f64,
}

#[derive(Debug, Args)]
pub struct Ipinyou {
    /// Impression files (.csv, .gz or .zst) with the columns weekday, hour, ..; docs/formats.md has them all
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    impressions: Vec<PathBuf>,
    /// Contracts as a control table with a pctr for each
    #[arg(long, value_name = "FILE")]
    control: PathBuf,
    /// Directory of the logs: DIR/weekday-0 ..
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Share of dropped rows above which nothing is imported
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = share)]
    max_bad_share: f64,
}

#[derive(Debug, Args)]
pub struct Check {
    /// Log directories
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// Share of bad track rows above which a log is refused
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = share)]
    max_bad_share: f64,
    /// Memory limit of compiling, MB, like data.memory_mb in the configuration
    #[arg(long, value_name = "MB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(16..=1 << 20))]
    memory: u32,
    /// Read every table and every compiled block again, even if nothing indicates a change
    #[arg(long)]
    verify: bool,
    /// Seconds until a policy observes a delivery, like env.feedback_delay_s in the configuration
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    feedback_delay: f64,
    /// End with exit code 11 if there is a warning
    #[arg(long)]
    strict: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

impl Data {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Synth(synth) => synth.run(),
            Self::Import(Import::Tencent2019(import)) => import.run(),
            Self::Import(Import::Ipinyou(import)) => import.run(),
            Self::Check(check) => check.run(),
            Self::Sample(sample) => sample.run(),
        }
    }
}

impl Synth {
    fn run(self) -> anyhow::Result<Exit> {
        let usage = |e: anyhow::Error| UsageError(format!("{e:#}"));
        let mut world = match &self.config {
            Some(path) => synth::load(path).map_err(usage)?,
            None => WorldSettings::default(),
        };
        if !self.like.is_empty() {
            let open = |dir: &PathBuf| crate::log::open(dir, CompileOptions::default());
            let days = self.like.iter().map(open).collect::<Result<Vec<_>, _>>()?;
            world = world.like(&days).map_err(usage)?;
        }
        world.exposures_only |= self.exposures_only;
        if self.parquet {
            world.compress = synth::Compress::Parquet;
        }
        let days = self.days.unwrap_or(world.days);
        let seed = self.seed.unwrap_or(world.seed);
        if !self.out.join("world.toml").is_file() {
            let mut tables = (0..days).flat_map(|day| {
                let dir = self.out.join(format!("day-{day}"));
                table::TABLES.into_iter().flat_map(move |name| table::all(&dir, name).collect::<Vec<_>>())
            });
            if let Some(table) = tables.next() {
                let why = format!("{} is there, and no `data synth` made it: name another --out", table.display());
                return Err(UsageError(why).into());
            }
        }
        synth::generate(&world, &self.out, days, seed, &|done| say!("{done} of {days} days written"))?;
        Ok(Exit::Done)
    }
}

fn print_import(report: &ImportReport) -> anyhow::Result<Exit> {
    print_text(&format!("{report}\n"))?;
    Ok(Exit::Done)
}

impl Tencent2019 {
    fn run(self) -> anyhow::Result<Exit> {
        let contracts = match (self.control, self.contracts_from_log) {
            (Some(path), _) => tencent2019::Contracts::Control(path),
            (None, count) => tencent2019::Contracts::FromLog { count: count.unwrap_or_default(), fill: self.fill },
        };
        let Self { track_log, split, out, max_bad_share, .. } = self;
        let options = tencent2019::Options { track_log, contracts, split, out, max_bad_share };
        let report = tencent2019::import(&options).map_err(|e| UsageError(format!("{e:#}")))?;
        print_import(&report)
    }
}

impl Ipinyou {
    fn run(self) -> anyhow::Result<Exit> {
        let Self { impressions, control, out, max_bad_share } = self;
        let options = ipinyou::Options { impressions, control, out, max_bad_share };
        let report = ipinyou::import(&options).map_err(|e| UsageError(format!("{e:#}")))?;
        print_import(&report)
    }
}

impl Sample {
    fn run(self) -> anyhow::Result<Exit> {
        if !(self.rate > 0.0 && self.rate <= 1.0) {
            return Err(UsageError(format!("--rate {}: must be above 0 and at most 1", self.rate)).into());
        }
        let options = CompileOptions { max_bad_share: self.max_bad_share, ..CompileOptions::default() };
        let sampling = Sampling { rate: self.rate, seed: self.seed };
        let report = sample::write(&self.dir, &self.out, sampling, options)?;
        if self.json {
            print_json(&report)?;
        } else {
            print_text(&report.to_string())?;
        }
        Ok(Exit::Done)
    }
}

impl Check {
    fn run(self) -> anyhow::Result<Exit> {
        let memory = (self.memory as usize) << 20;
        let (max_bad_share, verify) = (self.max_bad_share, self.verify);
        let options = CompileOptions { max_bad_share, memory, verify, ..CompileOptions::default() };
        let mut exit = Exit::Done;
        let mut hourly = Vec::new();
        for dir in &self.dirs {
            match check(dir, options, self.feedback_delay) {
                Ok(report) => {
                    if self.strict && !report.warnings.is_empty() && exit == Exit::Done {
                        exit = Exit::Suspect;
                    }
                    if self.json {
                        print_json(&report)?;
                    } else {
                        print_text(&report.to_string())?;
                    }
                    hourly.push(report.hourly);
                }
                Err(e) => {
                    exit = Exit::Usage;
                    if self.json {
                        print_json(&serde_json::json!({ "directory": dir, "error": e.to_string() }))?;
                    }
                    say!("error: {e}");
                }
            }
        }
        if let Some(wander) = Wander::of(&hourly) {
            if self.json {
                print_json(&serde_json::json!({ "wander": wander }))?;
            } else {
                print_text(&wander.to_string())?;
            }
        }
        Ok(exit)
    }
}
