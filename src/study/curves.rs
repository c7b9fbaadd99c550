//! Draws the learning curves of a study: the validation share of its variants by samples.

use crate::report::svg::Chart;

use super::config::Study;
use super::learning::{Curve, Evaluated};

/// Colours of the variants, told apart by people who are colour-blind too. Variants beyond them share colours.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// Returns the chart as an SVG file, with a thin line for each run and a thick one for the mean of each variant; `None` without evaluations.
pub fn draw(study: &Study, curves: &[Curve]) -> Option<String> {
    let all = || curves.iter().flat_map(|curve| &curve.evaluations).map(point);
    all().next()?;
    let mut chart = Chart::over(400.0, all().map(|(samples, _)| samples), all().map(|(_, share)| share));
    chart.axes("samples, thousands", "share of the bound on the validation days, %");
    for (number, variant) in study.variants.iter().enumerate() {
        let class = format!("v{}", number % COLOURS.len());
        let runs = curves.iter().filter(|curve| curve.variant == variant.name && !curve.evaluations.is_empty());
        let runs: Vec<Vec<(f64, f64)>> = runs.map(|run| run.evaluations.iter().map(point).collect()).collect();
        for run in &runs {
            chart.line(&format!("run {class}"), run);
        }
        let mean = mean(&runs);
        let Some(&(samples, share)) = mean.last() else { continue };
        chart.line(&class, &mean);
        let title = format!("{}: {share:.2} in the mean after {samples:.0} thousand samples", variant.name);
        chart.dot(&class, (samples, share), &title, Some(&variant.name));
    }
    Some(chart.file("validation share by samples", &style()))
}

fn point(evaluation: &Evaluated) -> (f64, f64) {
    (evaluation.samples / 1000.0, 100.0 * evaluation.share)
}

/// Returns the mean of lines wherever one of them has a point, from where all have begun. A line that has ended keeps its last value.
fn mean(lines: &[Vec<(f64, f64)>]) -> Vec<(f64, f64)> {
    let begin = lines.iter().map(|line| line[0].0).fold(0.0, f64::max);
    let mut xs: Vec<f64> = lines.iter().flatten().map(|(x, _)| *x).filter(|x| *x >= begin).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let mean = |x: f64| lines.iter().map(|line| value_at(line, x)).sum::<f64>() / lines.len() as f64;
    xs.into_iter().map(|x| (x, mean(x))).collect()
}

/// Interpolates a line at a place that is not before its first point.
fn value_at(line: &[(f64, f64)], x: f64) -> f64 {
    let after = line.partition_point(|point| point.0 <= x);
    let (x0, y0) = line[after - 1];
    match line.get(after) {
        Some((x1, y1)) => y0 + (y1 - y0) * (x - x0) / (x1 - x0),
        None => y0,
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

    #[test]
    fn the_mean_begins_where_all_lines_have_and_keeps_those_that_have_ended() {
        let lines = [vec![(0.0, 50.0), (10.0, 70.0)], vec![(5.0, 80.0), (15.0, 100.0)]];
        assert_eq!(mean(&lines), [(5.0, 70.0), (10.0, 80.0), (15.0, 85.0)]);
    }
}
