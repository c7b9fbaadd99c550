//! `admix export`: writes the dictionary of a feature server.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::export::{Dictionary, ExportOptions, Guard, Refusal};

use super::exit::Exit;
use super::numbers::{seconds, some_seconds};
use super::output::{print_json, print_text};

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 written, 12 refused (nothing is written).\n\n\
    Examples, before the day and during it:\n\n    \
    admix export --policy runs/default-1 --log day-4 --control today/control.tsv \\\n        --out dictionary.tsv\n    \
    admix export --policy runs/default-1 --log day-4 --control today/control.tsv \\\n        --day today/day.toml --at 14:30 \\\n        \
    --delivered-from today/joined_exposure.tsv --out dictionary.tsv")]
pub struct Export {
    /// A run directory (its best policy), a policy file, or baseline:NAME, which needs --plan
    #[arg(long, value_name = "RUN_DIR|FILE|baseline:NAME")]
    policy: String,
    /// Plan of a baseline, and of the planned play probabilities that the dictionary is compared with; default: the policy's
    #[arg(long, value_name = "RUN_DIR|FILE")]
    plan: Option<PathBuf>,
    /// Held-out log directory that the dictionary is judged on before it is written
    #[arg(long, value_name = "DIR")]
    log: PathBuf,
    /// Dictionary to write; FILE.state beside it is the state that its entries were scored at
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Contracts of the day to be served; default: those of --log
    #[arg(long, value_name = "FILE")]
    control: Option<PathBuf>,
    /// Supply forecast of the day to be served
    #[arg(long, value_name = "FILE", requires = "control")]
    inventory: Option<PathBuf>,
    /// Date of the day to be served; default: that of --log
    #[arg(long, value_name = "DAY.TOML")]
    day: Option<PathBuf>,
    /// Time of the state: HH:MM of the day, or Unix milliseconds; default: midnight
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Impressions shown since the start of the day (request_id, ad_id, ts_ms); those before --at count
    #[arg(long, value_name = "EXPOSURE", requires = "at")]
    delivered_from: Option<PathBuf>,
    /// Seconds until the dictionary is exported again
    #[arg(long, value_name = "SECONDS", default_value_t = 900.0, value_parser = some_seconds)]
    ttl: f64,
    /// Seconds until the policy observes a delivery
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    feedback_delay: f64,
    /// Seed of the rate draws
    #[arg(long, value_name = "S", default_value_t = 0)]
    rate_seed: u64,
    /// Print the results on the held-out day as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    guard: &'a Guard,
    entries: usize,
    model_version: &'a str,
    written: bool,
}

impl Export {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self.export() {
            Ok(()) => Ok(Exit::Done),
            Err(e) if e.is::<Refusal>() => {
                say!("{e:#}");
                Ok(Exit::VerdictNotReached)
            }
            Err(e) => Err(e),
        }
    }

    fn export(self) -> anyhow::Result<()> {
        let json = self.json;
        let dictionary = Dictionary::make(&self.options())?;
        let report = Written {
            guard: &dictionary.guard,
            entries: dictionary.rows.len(),
            model_version: &dictionary.version,
            written: dictionary.guard.check().is_ok(),
        };
        if json {
            print_json(&report)?;
        } else {
            print_text(&text(&report))?;
        }
        dictionary.write()
    }

    fn options(self) -> ExportOptions {
        ExportOptions {
            policy: self.policy,
            plan: self.plan,
            log: self.log,
            out: self.out,
            control: self.control,
            inventory: self.inventory,
            day: self.day,
            at: self.at,
            delivered_from: self.delivered_from,
            ttl_s: self.ttl,
            feedback_delay_s: self.feedback_delay,
            rate_seed: self.rate_seed,
        }
    }
}

fn text(report: &Written) -> String {
    let guard = report.guard;
    let points = |loss: Option<f64>| loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.2}"));
    format!(
        "{} entries of {}; on {}: J {:.2} by the policy, {:.2} by a dictionary exported every {:.0} s, {:.2} by planned play \
         probabilities\nloss in share: {} points from bucketing, {} with the age of entries; {:.1} % of the traffic covered\n",
        report.entries,
        report.model_version,
        guard.log,
        guard.j_policy,
        guard.j_dictionary,
        guard.ttl_s,
        guard.j_theta,
        points(guard.loss_bucketing),
        points(guard.loss_dictionary),
        100.0 * guard.coverage
    )
}
