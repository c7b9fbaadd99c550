//! `admix plan`: training days in, plan out.

use std::path::PathBuf;

use clap::Args;

use crate::log::CompileOptions;
use crate::run::context::{compile_options, open_logs};
use crate::settings::{self, Settings};
use crate::supervisor::prepare::plan_days;

use super::{Exit, print_json};

#[derive(Debug, Args)]
pub struct Plan {
    /// Training days: log directories
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// Take rate seed, feedback delay and tuning budget from this configuration
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Write the plan to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub fn run(self) -> anyhow::Result<Exit> {
        let (settings, options) = match &self.config {
            Some(path) => {
                let settings = settings::load(path, &[])?;
                let options = compile_options(&settings);
                (settings, options)
            }
            None => (Settings::default(), CompileOptions::default()),
        };
        let logs = open_logs(&self.dirs, options)?;
        let plan = plan_days(&self.dirs, logs, &settings.env, &settings.baselines, &settings.policy)?;
        if let Some(out) = &self.out {
            plan.write(out)?;
            eprintln!("plan written to {}", out.display());
        }
        if self.json {
            print_json(&plan)?;
        } else {
            print!("{}", render(&plan));
        }
        Ok(Exit::Done)
    }
}

fn render(plan: &crate::plan::Plan) -> String {
    use std::fmt::Write as _;
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
    let _ = writeln!(text, "\n{:>12}  {:>12}  {:>9}", "contract", "price/penalty", "presence");
    for (id, c) in &plan.contracts {
        let _ = writeln!(text, "{id:>12}  {:>12.3}  {:>9.3}", c.price_share, c.presence);
    }
    if let Some(tuned) = plan.tuned {
        let (pid, receding) = (tuned.pid, tuned.receding);
        let _ = writeln!(
            text,
            "\ntuned baselines\n  pid                P {:.2}, I {:.2}, D {:.3}\n  pass-rate          step {:.3}\n  \
             dual-descent-cold  step {:.2}\n  dual-descent-warm  step {:.2}\n  receding-horizon   each {:.0} s, price memory \
             {:.0} s",
            pid.proportional,
            pid.integral,
            pid.derivative,
            tuned.pass_rate_step,
            tuned.dual_cold_step,
            tuned.dual_warm_step,
            receding.interval_s,
            receding.memory_s
        );
    }
    text.push_str("mean best: mean worth of the best auction ad, minor units per impression\n");
    text
}
