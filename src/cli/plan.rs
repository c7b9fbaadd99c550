//! `admix plan`: makes a plan from training days.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use toml::Value;

use crate::evaluate::table::DECLARED;
use crate::files;
use crate::log::{CompileOptions, CompiledLog};
use crate::plan::{self, Allocation, DayPlan};
use crate::run::context::{compile_options, open_logs};
use crate::run::leakage::Roles;
use crate::settings::{self, Settings};
use crate::supervisor::children::bind_to_parent;
use crate::supervisor::prepare::Planning;

use super::exit::{Exit, UsageError};
use super::output::{print_json, print_text};
use super::told::ToldArguments;

#[derive(Debug, Args)]
#[command(after_help = "Example: admix plan day-0 day-1 day-2 --for day-3 --out plan.json")]
pub struct Plan {
    /// Training days: log directories
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// The day to be served: a log directory; only control, inventory and day.toml are read, never the track log. Default: the
    /// contracts of the last training day under the training days' forecast
    #[arg(long = "for", value_name = "DIR")]
    served: Option<PathBuf>,
    /// Validation days; baselines are also tuned on them, because they select a learner's parameters
    #[arg(long, value_name = "DIR", num_args = 1..)]
    validation: Vec<PathBuf>,
    /// Take rate seed, feedback delay and tuning budget from this configuration
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    told: ToldArguments,
    /// Write the plan to this file; `train --plan` and `eval --plan` take it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
    /// End when this process does; set by the commands that start runs
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<i32>,
}

impl Plan {
    pub fn run(self) -> anyhow::Result<Exit> {
        if let Some(parent) = self.parent {
            bind_to_parent(parent)?;
        }
        if let Some(out) = &self.out {
            files::check_place(out)
                .map_err(|e| UsageError(format!("cannot write {}: {e}; name another --out", out.display())))?;
        }
        let (settings, options) = match &self.config {
            Some(path) => {
                // The days are arguments; a configuration without them is none.
                let days = Value::from(self.dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>());
                let days = ["data.train", "data.validation"].map(|key| format!("{key}={days}"));
                let settings: Settings = settings::load(path, &days)?;
                let options = compile_options(&settings);
                (settings, options)
            }
            None => (Settings::default(), CompileOptions::default()),
        };
        let told = self.told.resolve(&settings.data)?;
        let logs = open_logs(&self.dirs, options, &told)?;
        Roles::check(&[
            ("the training days", &self.dirs, &logs),
            ("--validation", &self.validation, &open_logs(&self.validation, options, &told)?),
        ])?;
        let Settings { env, episodes, baselines, policy, .. } = &settings;
        let served = self.served.as_deref();
        let (dirs, validation, per_step) = (&self.dirs, &self.validation, settings.requests_per_step());
        let told = &told;
        let declared = logs.iter().any(CompiledLog::contracts_declared);
        let planning =
            Planning { dirs, logs, served, validation, options, told, env, episodes, per_step, baselines, policy };
        let plan = planning.plan()?;
        if let Some(out) = &self.out {
            plan.write(out)?;
            say!("plan written to {}", out.display());
        }
        if self.json {
            print_json(&plan)?;
        } else {
            print_text(&render(&plan))?;
            if declared {
                print_text(&format!("{DECLARED}\n"))?;
            }
        }
        Ok(Exit::Done)
    }
}

fn render(plan: &plan::Plan) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:16}  {:>9}  {:>10}  {:>12}  {:>12}",
        "training day", "requests", "mean best", "stake", "upper bound"
    );
    for day in &plan.days {
        let _ = writeln!(
            text,
            "{:16}  {:>9}  {:>10.4}  {:>12.0}  {:>12.0}",
            day.log, day.requests, day.mean_best, day.stake, day.upper_bound
        );
    }
    if let Some(tuned) = plan.tuned {
        text.push_str("tuned baselines\n");
        for (name, parameters) in tuned.parameters() {
            let _ = writeln!(text, "  {name:17}  {parameters}");
        }
    }
    if let Some(day) = &plan.served {
        contracts(&mut text, plan, day);
        over_booked(&mut text, day);
    }
    text.push_str(
        "\nmean best: mean worth of the best auction ad, minor units per impression; stake, upper bound: minor units\n\
         supply: forecast page views in whose queue the contract stands; booked: how often they are sold when all spread evenly\n\
         theta: play probability, by High Water Mark and by SHALE (on a request that nobody else wants)\n\
         price: mean dual price of the training days over the penalty; done by: 99 % of the plan; hours: impressions, 0 to 23 h\n",
    );
    text
}

fn contracts(text: &mut String, plan: &plan::Plan, day: &DayPlan) {
    let source = if day.own_inventory { "its own inventory" } else { "the training days' forecast" };
    let _ = writeln!(
        text,
        "\nTo be served: {} ({}), {:.0} requests by {source}, {} contracts, the scarcest first\n",
        day.log,
        day.date,
        day.requests,
        day.contracts.len()
    );
    let _ = writeln!(
        text,
        "{:>12}  {:>9}  {:>10}  {:>6}  {:>9}  {:>11}  {:>6}  {:>7}  hours",
        "contract", "demand", "supply", "booked", "theta HWM", "theta SHALE", "price", "done by"
    );
    let mut rows: Vec<(&u64, &Allocation)> = day.contracts.iter().collect();
    rows.sort_by_key(|(_, a)| a.rank);
    for (&id, a) in rows {
        let done = a.done_by().map_or("-".to_owned(), |m| format!("{:02}:{:02}", m / 60, m % 60));
        let name = if plan.contracts.contains_key(&id) { format!("{id}") } else { format!("{id} *") };
        let _ = writeln!(
            text,
            "{name:>12}  {:>9.0}  {:>10.0}  {:>6.2}  {:>9.3}  {:>11.3}  {:>6.3}  {done:>7}  {}",
            a.demand,
            a.supply,
            a.contention,
            a.theta_hwm,
            a.theta_shale,
            plan.known(id).price_share,
            hours(&a.curve)
        );
    }
    if day.contracts.keys().any(|id| !plan.contracts.contains_key(id)) {
        text.push_str("* not in the training days: presence and price are the mean of the others\n");
    }
}

/// Draws the planned impressions of each hour as bars; a dot where there are none.
fn hours(curve: &[f32]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let hours: Vec<f32> = curve.chunks(curve.len() / 24).map(|quarters| quarters.iter().sum()).collect();
    let most = hours.iter().copied().fold(0.0, f32::max);
    let bar = |&n: &f32| if n > 0.0 { BARS[((n / most * 8.0).ceil() as usize).clamp(1, 8) - 1] } else { '·' };
    hours.iter().map(bar).collect()
}

fn over_booked(text: &mut String, day: &DayPlan) {
    let short = day.over_booked();
    if short.is_empty() {
        text.push_str("\nNo contract is over-booked: under the forecast all demands can be met together. Whether that pays is another question: a contract\n\
             whose price is near its penalty (1.000) may be left short, because auction ads earn more.\n");
        return;
    }
    let impressions: f64 = short.iter().map(|(_, a)| a.unavoidable_shortage).sum();
    let money: f64 = short.iter().map(|(_, a)| a.unavoidable_cost()).sum();
    let _ = writeln!(
        text,
        "\nOVER-BOOKED: under the forecast {impressions:.0} impressions go missing whatever is shown; at best that costs {money:.2}\n\n\
         {:>12}  {:>9}  {:>9}  {:>7}  {:>9}  {:>12}",
        "contract", "demand", "short", "share", "penalty", "cost"
    );
    for (id, a) in &short {
        let _ = writeln!(
            text,
            "{id:>12}  {:>9.0}  {:>9.1}  {:>6.1}%  {:>9.4}  {:>12.2}",
            a.demand,
            a.unavoidable_shortage,
            100.0 * a.unavoidable_shortage / a.demand,
            a.penalty,
            a.unavoidable_cost()
        );
    }
    text.push_str(
        "The cheapest penalty goes short first. To mend it: book less, target wider, or lengthen the flight.\n",
    );
}
