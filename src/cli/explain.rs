//! `admix explain`: why an ad was shown on a request.

use std::path::PathBuf;

use clap::Args;

use crate::evaluate::compared::{self, ComparedPolicy};
use crate::evaluate::{Kind, TestDay};
use crate::explain;
use crate::plan::Plan;
use crate::policy::baselines;
use crate::run::context::compile_options;
use crate::values::Told;

use super::exit::{Exit, UsageError};
use super::output::{print_json, print_text};
use super::replayed::Replayed;
use super::told::ToldArguments;

#[derive(Debug, Args)]
#[command(
    after_help = "The day is replayed up to the request under the policy and under each baseline. Of every candidate it shows \
                  the bid, of contracts also delivery against plan, lag, the training days' price and, for a learned policy, its \
                  features; of the others, what they would have shown and what came next.\n\n\
                  Example: admix explain --policy runs/quickstart-20261120-030000 --log data/test-0 \\\n    --request 400000123"
)]
pub struct Explain {
    /// Policy: a run directory (its best policy) or a policy file
    #[arg(long, value_name = "RUN_DIR|FILE")]
    policy: PathBuf,
    /// Log directory of the day
    #[arg(long, value_name = "DIR")]
    log: PathBuf,
    /// Request id
    #[arg(long, value_name = "ID")]
    request: u64,
    /// Plan of the baselines; default: the policy's
    #[arg(long, value_name = "RUN_DIR|FILE")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    told: ToldArguments,
    #[command(flatten)]
    replayed: Replayed,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Explain {
    pub fn run(self) -> anyhow::Result<Exit> {
        let usage = |e: anyhow::Error| UsageError(format!("{e:#}"));
        let name = compared::names_of(std::slice::from_ref(&self.policy)).remove(0);
        let mut entries = ComparedPolicy::read(&name, &self.policy).map_err(usage)?;
        entries.retain(|entry| matches!(entry.kind, Kind::Trained | Kind::Baseline | Kind::Untrained));
        let plan = match &self.plan {
            Some(path) => Plan::read(path).map_err(usage)?,
            None => entries[0].policy.plan().clone(),
        };
        let settings = self.replayed.settings();
        let told = self.told.resolve(&settings.data)?;
        let day = TestDay::open(&self.log, compile_options(&settings), (&told, &Told::Logged), None)?;
        let names = baselines::NAMES.map(String::from);
        let found = explain::explain(&day, self.request, &entries, &plan, &names, &settings).map_err(usage)?;
        if self.json {
            print_json(&found)?
        } else {
            print_text(&explain::render(&found))?
        }
        Ok(Exit::Done)
    }
}
