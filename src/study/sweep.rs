//! Sweeps: many settings of the same keys, tried on the same days.
//!
//! A sweep is a study whose variants are drawn from a grid or at random. Trials are ranked and chosen on the validation days.
//! The reported days show what the choice is worth, because the result of the best of many trials on the days that it was chosen
//! on is partly luck.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use twox_hash::XxHash3_64;

use crate::settings::{self, Settings};

use super::Report;
use super::config::{CHOSEN, FOR_ALL, OWN, Study, is_of_the_problem};
use super::learning::Curve;
use super::report::table;
use super::statistics::{interval, mean};

/// Maximum number of trials of a sweep.
const MOST: usize = 10_000;

/// Distribution of a key's values.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Range {
    Uniform([f64; 2]),
    /// Uniform in the logarithm.
    Log([f64; 2]),
    /// Uniform over whole numbers, both ends included.
    Int([i64; 2]),
}

/// Possible values of a key.
#[derive(Debug, Clone, PartialEq)]
enum KeyValues {
    Range(Range),
    List(Vec<Value>),
}

/// One assignment of values to the keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// Name made from the values, so that trials keep their runs when others are added.
    pub name: String,
    pub values: Vec<Value>,
}

/// A validated sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// The trials as variants.
    pub study: Study,
    pub keys: Vec<String>,
    pub trials: Vec<Trial>,
}

impl Sweep {
    /// Reads a sweep file: a study file without variants, with either `[grid]` or `[random]`. Without a `[[world]]` the days are
    /// those of the configuration.
    ///
    /// # Errors
    /// An unreadable file, a key or value that cannot be used.
    pub fn load(path: &Path, data: Option<&Path>) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let table: Table = toml::from_str(&text).with_context(|| format!("{}", path.display()))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::resolve(table, folder, data).with_context(|| format!("{}", path.display()))
    }

    fn resolve(mut file: Table, folder: &Path, data: Option<&Path>) -> Result<Self> {
        ensure!(!file.contains_key("variant"), "a sweep has no [[variant]]: `[grid]` or `[random]` makes the trials");
        let (keys, trials) = match (file.remove("grid"), file.remove("random")) {
            (Some(grid), None) => of_grid(grid)?,
            (None, Some(random)) => of_random(random)?,
            _ => bail!("give either `[grid]` or `[random]`"),
        };
        for key in &keys {
            ensure!(!OWN.contains(&key.as_str()), "`{key}` is the sweep's own to set (seeds: `seeds`)");
            ensure!(!is_of_the_problem(key), "the trials vary `{key}`, {FOR_ALL}");
        }
        let variants = trials.iter().map(|trial| {
            let sets = keys.iter().zip(&trial.values).map(|(key, value)| Value::String(format!("{key}={value}")));
            let entry = [("name", Value::String(trial.name.clone())), ("set", Value::Array(sets.collect()))];
            Value::Table(entry.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
        });
        file.insert("variant".into(), Value::Array(variants.collect()));
        file.insert("choose".into(), Value::Boolean(true));
        if !file.contains_key("world") {
            let world = world_of_config(&file, folder)?;
            file.insert("world".into(), Value::Array(vec![Value::Table(world)]));
        }
        Ok(Self { study: Study::of_table(file, folder, data)?, keys, trials })
    }
}

/// Returns the configuration's own days as a world.
fn world_of_config(file: &Table, folder: &Path) -> Result<Table> {
    let config = file.get("config").and_then(Value::as_str).context("the sweep names no `config`")?;
    let sets: Vec<String> = match file.get("set") {
        Some(set) => set.clone().try_into().context("`set` is a list of key=value")?,
        None => vec![],
    };
    let settings: Settings = settings::load(&super::config::beside(folder, Path::new(config))?, &sets)?;
    let data = settings.data;
    ensure!(!data.test.is_empty(), "give a [[world]], or `data.test` in the configuration: trials are reported on it");
    let logs: Vec<PathBuf> = [&data.train[..], &data.validation, &data.test].concat();
    let logs = logs.iter().map(|dir| dir.canonicalize().with_context(|| format!("no log directory {}", dir.display())));
    let logs = logs.map(|dir| Ok(Value::String(dir?.to_string_lossy().into_owned()))).collect::<Result<Vec<_>>>()?;
    let (train, validation) = (data.train.len(), data.train.len() + data.validation.len());
    let days = [("train", 0..train), ("validation", train..validation), ("report", validation..logs.len())];
    let days: Table = days
        .into_iter()
        .map(|(role, days)| (role.to_owned(), Value::Array(days.map(|d| Value::Integer(d as i64)).collect())))
        .collect();
    let entries = [("name", Value::String("data".into())), ("logs", Value::Array(logs)), ("days", Value::Table(days))];
    Ok(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// Flattens nested tables to full keys with their values; `a.b = ..` and `"a.b" = ..` are the same.
fn flatten(prefix: &str, table: Table, is_leaf: &dyn Fn(&Value) -> bool, found: &mut BTreeMap<String, Value>) {
    for (key, value) in table {
        let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value {
            Value::Table(inner) if !is_leaf(&Value::Table(inner.clone())) => flatten(&key, inner, is_leaf, found),
            value => drop(found.insert(key, value)),
        }
    }
}

fn list(key: &str, value: Value) -> Result<Vec<Value>> {
    let Value::Array(values) = value else { bail!("`{key}` is not a list of values") };
    ensure!(!values.is_empty(), "`{key}` has no values");
    let distinct: std::collections::HashSet<String> = values.iter().map(ToString::to_string).collect();
    ensure!(distinct.len() == values.len(), "`{key}` has a value twice");
    Ok(values)
}

fn of_grid(grid: Value) -> Result<(Vec<String>, Vec<Trial>)> {
    let Value::Table(grid) = grid else { bail!("`grid` is a table of keys with lists of values") };
    let mut found = BTreeMap::new();
    flatten("", grid, &|_| false, &mut found);
    ensure!(!found.is_empty(), "`[grid]` names no key");
    let lists = found.iter().map(|(key, value)| list(key, value.clone())).collect::<Result<Vec<_>>>()?;
    let keys: Vec<String> = found.into_keys().collect();
    let count = lists.iter().try_fold(1usize, |n, list| n.checked_mul(list.len())).unwrap_or(usize::MAX);
    ensure!(count <= MOST, "the grid has {count} trials; {MOST} at most");
    let mut rows: Vec<Vec<Value>> = vec![vec![]];
    for list in &lists {
        rows = rows.iter().flat_map(|row| list.iter().map(|v| [&row[..], std::slice::from_ref(v)].concat())).collect();
    }
    let trials = rows.into_iter().map(|values| Trial::new(&keys, values)).collect();
    Ok((keys, trials))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Random {
    trials: usize,
    #[serde(default)]
    seed: u64,
    keys: Table,
}

fn of_random(random: Value) -> Result<(Vec<String>, Vec<Trial>)> {
    let Random { trials, seed, keys } =
        random.try_into().context("`[random]` has `trials`, `seed` and `[random.keys]`")?;
    ensure!((1..=MOST).contains(&trials), "`random.trials` is {trials}; 1 to {MOST}");
    let is_range = |value: &Value| {
        let names = ["uniform", "log", "int"];
        value.as_table().is_some_and(|t| t.len() == 1 && t.keys().all(|k| names.contains(&k.as_str())))
    };
    let mut found = BTreeMap::new();
    flatten("", keys, &is_range, &mut found);
    ensure!(!found.is_empty(), "`[random.keys]` names no key");
    let values = found.iter().map(|(key, value)| KeyValues::parse(key, value)).collect::<Result<Vec<_>>>()?;
    let keys: Vec<String> = found.into_keys().collect();
    let draw = |i: usize| {
        let drawn = keys.iter().zip(&values).map(|(key, values)| {
            // A separate stream for each trial and key, so that adding some does not change the others.
            let mut rng = ChaCha8Rng::seed_from_u64(seed ^ XxHash3_64::oneshot(key.as_bytes()));
            rng.set_stream(i as u64);
            values.draw(&mut rng)
        });
        Trial::new(&keys, drawn.collect())
    };
    let mut drawn: Vec<Trial> = (0..trials).map(draw).collect();
    // Short lists may give the same trial twice.
    let mut seen = std::collections::HashSet::new();
    drawn.retain(|trial| seen.insert(trial.name.clone()));
    Ok((keys, drawn))
}

impl KeyValues {
    fn parse(key: &str, value: &Value) -> Result<Self> {
        if value.is_array() {
            return Ok(Self::List(list(key, value.clone())?));
        }
        let wanted = "a list of values, { uniform = [a, b] }, { log = [a, b] } or { int = [a, b] }";
        let range: Range = value.clone().try_into().map_err(|_| anyhow::anyhow!("`{key}` is not {wanted}"))?;
        let sound = match range {
            Range::Uniform([a, b]) => a.is_finite() && b.is_finite() && a < b,
            Range::Log([a, b]) => 0.0 < a && a < b && b.is_finite(),
            Range::Int([a, b]) => a <= b,
        };
        ensure!(
            sound,
            "`{key}` has an empty range{}",
            if matches!(range, Range::Log(_)) { "; both ends are above 0" } else { "" }
        );
        Ok(Self::Range(range))
    }

    fn draw(&self, rng: &mut ChaCha8Rng) -> Value {
        match self {
            Self::List(values) => values[rng.random_range(0..values.len())].clone(),
            Self::Range(Range::Int([a, b])) => Value::Integer(rng.random_range(*a..=*b)),
            Self::Range(Range::Uniform([a, b])) => Value::Float(rounded(rng.random_range(*a..*b))),
            Self::Range(Range::Log([a, b])) => Value::Float(rounded(rng.random_range(a.ln()..b.ln()).exp())),
        }
    }
}

/// Rounds to four significant digits, so that different values also look different.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

impl Trial {
    fn new(keys: &[String], values: Vec<Value>) -> Self {
        let text: Vec<String> = keys.iter().zip(&values).map(|(key, value)| format!("{key}={value}")).collect();
        Self { name: format!("t-{:016x}", XxHash3_64::oneshot(text.join(";").as_bytes())), values }
    }
}

/// A mean with its 95 % interval; shares in percent, differences in points.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    pub mean: f64,
    pub interval: Option<[f64; 2]>,
}

impl Estimate {
    fn of(values: &[f64]) -> Option<Self> {
        (!values.is_empty()).then(|| Self { mean: mean(values), interval: interval(values) })
    }
}

/// Result of a trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ranked {
    pub trial: String,
    pub values: BTreeMap<String, Value>,
    /// Number of finished runs, and of those that are missing of worlds times seeds. A trial that lacks some has no rank, because the
    /// days of the others may be easier.
    pub runs: usize,
    pub missing: usize,
    /// Best share on the validation days, by which the trials are ranked.
    pub validation: Option<Estimate>,
    /// Validation share less that of the first trial, paired by world and seed.
    pub behind_first: Option<Estimate>,
    /// Share on the reported days.
    pub reported: Option<Estimate>,
    /// Reported share less that of each world's best baseline.
    pub over_best_baseline: Option<Estimate>,
    /// Means of samples and seconds over the runs.
    pub samples: Option<f64>,
    pub seconds: Option<f64>,
}

/// The trials, best first and those that lack runs last, and the results of choosing among them.
#[derive(Debug, Serialize)]
pub struct Ranking {
    pub keys: Vec<String>,
    pub trials: Vec<Ranked>,
    /// Share on the reported days of the trial chosen for each world and seed on the validation days.
    pub chosen: Option<Estimate>,
    pub chosen_over_best_baseline: Option<Estimate>,
}

/// Best validation share of a trial's runs by world and seed, percent.
type Runs<'a> = BTreeMap<(&'a str, u64), f64>;

/// Returns independent values: the means of worlds if there are several, else the values of seeds.
fn independent(runs: &Runs) -> Vec<f64> {
    let mut worlds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for ((world, _), share) in runs {
        worlds.entry(world).or_default().push(*share);
    }
    if worlds.len() > 1 {
        worlds.values().map(|shares| mean(shares)).collect()
    } else {
        runs.values().copied().collect()
    }
}

impl Ranking {
    /// Ranks the trials of a sweep from its study's report.
    pub fn of(sweep: &Sweep, report: &Report) -> Self {
        let runs_of = |trial: &Trial| -> Runs {
            let mine = report.learning.iter().filter(|c: &&Curve| c.variant == trial.name);
            mine.filter_map(|c| Some(((c.world.as_str(), c.seed), 100.0 * c.best_share?))).collect()
        };
        let mut all: Vec<(&Trial, Runs)> = sweep.trials.iter().map(|trial| (trial, runs_of(trial))).collect();
        let finished = |trial: &Trial| report.learning.iter().filter(|c| c.variant == trial.name).count();
        let wanted = sweep.study.worlds.len() * sweep.study.seeds.len();
        let order = |runs: &Runs| if runs.is_empty() { f64::NEG_INFINITY } else { mean(&independent(runs)) };
        all.sort_by(|a, b| finished(b.0).cmp(&finished(a.0)).then(order(&b.1).total_cmp(&order(&a.1))));
        let first = all.first().map(|(_, runs)| runs.clone()).unwrap_or_default();
        let reported = |name: &str| {
            let policy = report.summary.policies.iter().find(|p| p.policy == name)?;
            Some(Estimate { mean: 100.0 * policy.mean_share, interval: policy.interval.map(|i| i.map(|v| 100.0 * v)) })
        };
        let over = |name: &str| {
            let is_it = |d: &&super::paired::Difference| {
                d.policy == name && d.against == super::found::BEST_BASELINE && d.days == "all"
            };
            let found = report.summary.differences.iter().find(is_it)?;
            Some(Estimate { mean: found.points, interval: found.interval })
        };
        let trials = all
            .iter()
            .enumerate()
            .map(|(i, (trial, runs))| {
                let paired: Runs = runs.iter().filter_map(|(k, s)| Some((*k, s - first.get(k)?))).collect();
                let mine: Vec<&Curve> = report.learning.iter().filter(|c| c.variant == trial.name).collect();
                let over_runs = |f: fn(&Curve) -> f64| {
                    (!mine.is_empty()).then(|| mean(&mine.iter().map(|c| f(c)).collect::<Vec<_>>()))
                };
                Ranked {
                    trial: trial.name.clone(),
                    values: sweep.keys.iter().cloned().zip(trial.values.iter().cloned()).collect(),
                    runs: mine.len(),
                    missing: wanted.saturating_sub(mine.len()),
                    validation: Estimate::of(&independent(runs)),
                    behind_first: if i > 0 { Estimate::of(&independent(&paired)) } else { None },
                    reported: reported(&trial.name),
                    over_best_baseline: over(&trial.name),
                    samples: over_runs(|c| c.samples as f64),
                    seconds: over_runs(|c| c.seconds),
                }
            })
            .collect();
        Self { keys: sweep.keys.clone(), trials, chosen: reported(CHOSEN), chosen_over_best_baseline: over(CHOSEN) }
    }

    /// Renders the ranking as a Markdown table.
    pub fn render(&self, title: &str) -> String {
        let share =
            |e: Option<Estimate>| e.map_or_else(|| "-".to_owned(), |e| format!("{:.2}{}", e.mean, within(e, 2)));
        let points =
            |e: Option<Estimate>| e.map_or_else(|| "-".to_owned(), |e| format!("{:+.3}{}", e.mean, within(e, 3)));
        let mut header = vec!["trial".to_owned()];
        header.extend(self.keys.iter().cloned());
        header.extend(
            ["runs", "validation", "behind the first", "reported", "over best baseline", "seconds"].map(String::from),
        );
        let rows: Vec<Vec<String>> = self
            .trials
            .iter()
            .map(|t| {
                let mut row = vec![t.trial.clone()];
                row.extend(self.keys.iter().map(|key| t.values[key].to_string()));
                let runs = t.runs.to_string();
                row.extend([
                    if t.missing > 0 { format!("{runs} of {}", t.runs + t.missing) } else { runs },
                    share(t.validation),
                    points(t.behind_first),
                    share(t.reported),
                    points(t.over_best_baseline),
                    t.seconds.map_or_else(|| "-".to_owned(), |s| format!("{s:.1}")),
                ]);
                row
            })
            .collect();
        let mut text = format!("# Sweep: {title}\n\n{}", table(&header, &rows));
        text.push_str(
            "\nRanked by the best share on the validation days, percent of the hindsight bound; `behind the first` is paired by world \
             and seed. Brackets: 95 %, Student's over the worlds' means, over the seeds where there is one world; none for a single \
             run. The reported days chose nothing.\n",
        );
        if self.trials.iter().any(|t| t.missing > 0) {
            text.push_str(
                "\nTrials that lack runs stand last and have no rank: their figures are of the worlds and seeds that they have.\n",
            );
        }
        if let Some(chosen) = self.chosen {
            let _ = writeln!(
                text,
                "\nWho takes the trial that is best on the validation days has {}{} on the reported days, {} points over the best \
                 baseline. The first trial's own figure is too good by what luck gave it.",
                format_args!("{:.2}", chosen.mean),
                within(chosen, 2),
                points(self.chosen_over_best_baseline)
            );
        }
        text
    }

    /// Writes the ranking as CSV, one row per trial; a trial that lacks runs has no rank.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write_csv(&self, path: &Path) -> Result<()> {
        let mut writer = csv::Writer::from_path(path).with_context(|| format!("cannot write {}", path.display()))?;
        let estimates = ["validation", "behind_first", "reported", "over_best_baseline"];
        let mut header: Vec<String> = ["rank", "trial"].map(String::from).into();
        header.extend(self.keys.iter().cloned());
        header.push("runs".into());
        header.extend(estimates.iter().flat_map(|e| [(*e).to_owned(), format!("{e}_low"), format!("{e}_high")]));
        header.extend(["missing", "samples", "seconds"].map(String::from));
        writer.write_record(&header)?;
        for (i, t) in self.trials.iter().enumerate() {
            let rank = if t.missing > 0 { String::new() } else { (i + 1).to_string() };
            let mut row = vec![rank, t.trial.clone()];
            row.extend(self.keys.iter().map(|key| match &t.values[key] {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            }));
            row.push(t.runs.to_string());
            for e in [t.validation, t.behind_first, t.reported, t.over_best_baseline] {
                let interval = e.and_then(|e| e.interval);
                row.extend([e.map(|e| e.mean), interval.map(|i| i[0]), interval.map(|i| i[1])].map(cell));
            }
            row.push(t.missing.to_string());
            row.extend([t.samples, t.seconds].map(cell));
            writer.write_record(&row)?;
        }
        Ok(writer.flush()?)
    }
}

/// Formats a number; empty for `None`.
fn cell(value: Option<f64>) -> String {
    value.map(|v| v.to_string()).unwrap_or_default()
}

fn within(e: Estimate, digits: usize) -> String {
    e.interval.map_or_else(String::new, |[low, high]| format!(" [{low:.digits$}, {high:.digits$}]"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::config::{Days, Source, Variant, World};
    use crate::study::found::Found;
    use crate::study::summary::Summary;

    fn grid(text: &str) -> Result<(Vec<String>, Vec<Trial>)> {
        of_grid(Value::Table(toml::from_str(text).unwrap()))
    }

    fn random(text: &str) -> Result<(Vec<String>, Vec<Trial>)> {
        of_random(Value::Table(toml::from_str(text).unwrap()))
    }

    #[test]
    fn a_grid_has_every_combination_once_and_names_that_last() {
        let (keys, trials) = grid("a.b = [1, 2]\n\"c\" = [\"x\", \"y\", \"z\"]").unwrap();
        assert_eq!((keys, trials.len()), (vec!["a.b".to_owned(), "c".to_owned()], 6));
        let names: std::collections::HashSet<&String> = trials.iter().map(|t| &t.name).collect();
        assert_eq!(names.len(), 6);
        let (_, more) = grid("a.b = [0, 1, 2]\nc = [\"x\", \"y\", \"z\"]").unwrap();
        assert!(trials.iter().all(|t| more.contains(t)));
        for bad in ["", "a = 1", "a = []", "a = [1, 1]", "a = { b = 2 }"] {
            assert!(grid(bad).is_err(), "{bad}");
        }
    }

    /// A trial whose run had failed in the hard world rose to the first place by the easy one.
    #[test]
    fn a_trial_that_lacks_runs_is_behind_those_that_have_all() {
        let (keys, trials) = grid("a = [1, 2, 3]").unwrap();
        let worlds = ["easy", "hard"].map(|name| World {
            name: name.into(),
            source: Source::Logs(vec![]),
            days: Days { train: vec![], validation: vec![], report: vec![] },
        });
        let study = Study {
            base: Variant { name: "base".into(), config: PathBuf::new(), sets: vec![] },
            seeds: vec![1],
            baselines: vec![],
            worlds: worlds.into(),
            variants: vec![],
            stresses: vec![],
            frontier: vec![],
            choose: true,
            informed: false,
        };
        let curve = |trial: usize, world: &str, share: f64| Curve {
            world: world.into(),
            variant: trials[trial].name.clone(),
            seed: 1,
            evaluations: vec![],
            reached: vec![],
            best_share: Some(share),
            samples: 100,
            seconds: 1.0,
            mean_lag: 0.0,
            max_lag: 0,
        };
        let learning = vec![
            curve(0, "easy", 0.98),
            curve(1, "easy", 0.97),
            curve(1, "hard", 0.90),
            curve(2, "easy", 0.97),
            curve(2, "hard", 0.92),
        ];
        let report = Report { summary: Summary::of(&Found::default(), &[]), learning, table: String::new() };
        let names = [2, 1, 0].map(|trial: usize| trials[trial].name.clone());
        let ranking = Ranking::of(&Sweep { study, keys, trials }, &report);
        assert_eq!(ranking.trials.iter().map(|t| t.trial.clone()).collect::<Vec<_>>(), names);
        assert_eq!(ranking.trials.iter().map(|t| (t.runs, t.missing)).collect::<Vec<_>>(), [(2, 0), (2, 0), (1, 1)]);
        let behind = ranking.trials[2].behind_first.unwrap().mean;
        assert!((behind - 1.0).abs() < 1e-9, "over the world of both: {behind}");
        let table = ranking.render("x");
        assert!(table.contains("1 of 2") && table.contains("lack runs"), "{table}");
        let file = tempfile::NamedTempFile::new().unwrap();
        ranking.write_csv(file.path()).unwrap();
        let csv = std::fs::read_to_string(file.path()).unwrap();
        assert!(csv.lines().nth(3).unwrap().starts_with(&format!(",{},1,1,", names[2])), "{csv}");
    }

    #[test]
    fn random_trials_stay_when_others_are_added() {
        let text = "seed = 3\n[keys]\na.rate = { log = [1e-4, 1e-2] }\nn = { int = [2, 9] }\nx = { uniform = [-1, 1] }\nl = [16, 32]";
        let (keys, few) = random(&format!("trials = 20\n{text}")).unwrap();
        assert_eq!(keys, ["a.rate", "l", "n", "x"]);
        let (_, many) = random(&format!("trials = 40\n{text}")).unwrap();
        assert_eq!((few.len(), many.len()), (20, 40));
        assert_eq!(few, many[..20]);
        for t in &many {
            let float = |i: usize| t.values[i].as_float().unwrap();
            assert!((1e-4..=1e-2).contains(&float(0)) && (-1.0..=1.0).contains(&float(3)));
            assert!((2..=9).contains(&t.values[2].as_integer().unwrap()));
            assert!([16, 32].contains(&t.values[1].as_integer().unwrap()));
        }
        assert!(random("trials = 99\n[keys]\nl = [1, 2]").unwrap().1.len() == 2, "a trial is made once");
        for bad in [
            "trials = 0\n[keys]\na = [1]",
            "trials = 2\n[keys]\na = { log = [0, 1] }",
            "trials = 2\n[keys]\na = { int = [3, 1] }",
            "trials = 2\n[keys]\na = 3",
            "[keys]\na = [1]",
        ] {
            assert!(random(bad).is_err(), "{bad}");
        }
    }
}
