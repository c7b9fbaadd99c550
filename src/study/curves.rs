//! Draws the learning curves of a study: the validation share of its variants by updates.

use crate::report::svg::Chart;

use super::config::Study;
use super::learning::{Curve, Evaluated};

/// Colours of the variants, told apart by people who are colour-blind too. Variants beyond them share colours.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// Returns the chart as an SVG file, with a thin line for each run and a thick one for the mean of each variant; `None` without evaluations.
pub fn draw(study: &Study, curves: &[Curve]) -> Option<String> {
    let all = || curves.iter().flat_map(|curve| &curve.evaluations).map(point);
    all().next()?;
    let mut chart = Chart::over(400.0, all().map(|(updates, _)| updates), all().map(|(_, share)| share));
    chart.axes("updates", "share of the bound on the validation days, %");
    for (number, variant) in study.variants.iter().enumerate() {
        let colour = number % COLOURS.len();
        let runs: Vec<&Curve> =
            curves.iter().filter(|c| c.variant == variant.name && !c.evaluations.is_empty()).collect();
        for run in &runs {
            let points: Vec<(f64, f64)> = run.evaluations.iter().map(point).collect();
            chart.line(&format!("run v{colour}"), &points);
        }
        let mean = mean(&runs);
        let Some(&(updates, share)) = mean.last() else { continue };
        chart.line(&format!("v{colour}"), &mean);
        let title = format!("{}: {share:.2} in the mean after {updates:.0} updates", variant.name);
        chart.dot(&format!("v{colour}"), (updates, share), &title, Some(&variant.name));
    }
    Some(chart.file("validation share by updates", &style()))
}

fn point(evaluation: &Evaluated) -> (f64, f64) {
    (evaluation.updates as f64, 100.0 * evaluation.share)
}

/// Returns the mean over runs at each update count at which one of them was evaluated. A run that has ended keeps its last share.
fn mean(runs: &[&Curve]) -> Vec<(f64, f64)> {
    // From where all runs have a value.
    let first = runs.iter().map(|run| run.evaluations[0].updates).max().unwrap_or(0);
    let mut counts: Vec<u64> =
        runs.iter().flat_map(|run| &run.evaluations).map(|e| e.updates).filter(|u| *u >= first).collect();
    counts.sort_unstable();
    counts.dedup();
    let mean =
        |updates: &u64| runs.iter().map(|run| share_at(&run.evaluations, *updates)).sum::<f64>() / runs.len() as f64;
    counts.iter().map(|updates| (*updates as f64, 100.0 * mean(updates))).collect()
}

/// Interpolates a run's share at an update count that is not before its first evaluation.
fn share_at(evaluations: &[Evaluated], updates: u64) -> f64 {
    let after = evaluations.partition_point(|e| e.updates <= updates);
    let before = evaluations[after - 1];
    match evaluations.get(after) {
        Some(next) => {
            let part = (updates - before.updates) as f64 / (next.updates - before.updates) as f64;
            before.share + part * (next.share - before.share)
        }
        None => before.share,
    }
}

fn style() -> String {
    let mut style = String::from(
        ".page { fill: #fff; }\n\
         text { font: 13px sans-serif; fill: #444; }\n\
         .grid { stroke: #ddd; }\n\
         polyline { fill: none; stroke-width: 2.5; }\n\
         polyline.run { stroke-width: 1; opacity: 0.25; }\n",
    );
    for (number, colour) in COLOURS.iter().enumerate() {
        style.push_str(&format!(
            "polyline.v{number} {{ stroke: {colour}; }} circle.v{number}, text.v{number} {{ fill: {colour}; }}\n"
        ));
    }
    style
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(evaluations: &[(u64, f64)]) -> Curve {
        let evaluations = evaluations.iter().map(|&(updates, share)| Evaluated { updates, share }).collect();
        Curve {
            world: "w".into(),
            variant: "v".into(),
            seed: 1,
            evaluations,
            reached: vec![],
            best_share: None,
            samples: 0,
            seconds: 0.0,
            mean_lag: 0.0,
            max_lag: 0,
        }
    }

    #[test]
    fn the_mean_begins_where_all_runs_do_and_keeps_runs_that_have_ended() {
        let runs = [run(&[(0, 0.5), (10, 0.7)]), run(&[(5, 0.8), (15, 1.0)])];
        let mean = mean(&runs.iter().collect::<Vec<_>>());
        let expected = [(5.0, 70.0), (10.0, 80.0), (15.0, 85.0)];
        assert_eq!(mean.len(), expected.len());
        for (found, expected) in mean.iter().zip(expected) {
            assert!(found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-9, "{found:?} {expected:?}");
        }
    }
}
