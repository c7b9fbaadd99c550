//! Charts as SVG, inline or as files. Colours are classes: the style sheet of the page or of the file sets them.

use std::fmt::Write as _;

/// Width of the drawing in its own units; the page scales it.
const WIDTH: f64 = 720.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 44.0;

/// Escapes text for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns about `count` axis values at round distances.
fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let raw = (high - low) / count as f64;
    let magnitude = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * magnitude).into_iter().find(|s| *s >= raw).unwrap_or(raw);
    let first = (low / step).ceil() * step;
    // Bounded by a count: in a range narrower than the precision of its numbers, adding a step would not change the value.
    (0..=2 * count).map(|i| first + i as f64 * step).take_while(|value| *value <= high + 1e-9 * step).collect()
}

/// Formats a tick with as many decimals as the step between ticks needs.
fn label(value: f64, step: f64) -> String {
    let decimals = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.decimals$}");
    if text.trim_start_matches(['-', '0', '.']).is_empty() { format!("{:.decimals$}", 0.0) } else { text }
}

/// Returns a non-empty range with a margin.
fn padded(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|v| v.is_finite());
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    if low > high {
        return (0.0, 1.0);
    }
    let pad = if high > low { 0.06 * (high - low) } else { 0.5 * high.abs().max(1e-6) };
    (low - pad, high + pad)
}

/// A chart that is being drawn.
pub struct Chart {
    height: f64,
    x: (f64, f64),
    y: (f64, f64),
    body: String,
    /// Left end, right end and baseline of the labels so far.
    labels: Vec<[f64; 3]>,
}

/// Height of a line of labels, and approximate width of a letter on a narrow page, where letters are larger.
const LINE: f64 = 22.0;
const LETTER: f64 = 11.0;

impl Chart {
    /// Begins a chart whose axes include all of these values.
    pub fn over(height: f64, xs: impl Iterator<Item = f64>, ys: impl Iterator<Item = f64>) -> Self {
        let (x, y) = (padded(xs), padded(ys));
        Self { height, x, y, body: String::new(), labels: vec![] }
    }

    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let across = (x - self.x.0) / (self.x.1 - self.x.0);
        let up = (y - self.y.0) / (self.y.1 - self.y.0);
        (LEFT + across * (WIDTH - LEFT - RIGHT), self.height - BOTTOM - up * (self.height - TOP - BOTTOM))
    }

    /// Draws the axes with their titles.
    pub fn axes(&mut self, x_title: &str, y_title: &str) {
        let (bottom, right) = (self.height - BOTTOM, WIDTH - RIGHT);
        for (vertical, (low, high), count) in [(false, self.x, 6), (true, self.y, 5)] {
            let all = ticks(low, high, count);
            let step = all.get(1).map_or(1.0, |second| second - all[0]);
            for value in all {
                let text = label(value, step);
                if vertical {
                    let (_, y) = self.at(self.x.0, value);
                    let _ = write!(
                        self.body,
                        "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" />\
                         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                        LEFT - 6.0,
                        y + 4.0
                    );
                } else {
                    let (x, _) = self.at(value, self.y.0);
                    let _ = write!(
                        self.body,
                        "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                        bottom + 18.0
                    );
                }
            }
        }
        let _ = write!(
            self.body,
            "<text class=\"axis\" x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text class=\"axis\" x=\"0\" y=\"18\">{}</text>",
            self.height - 4.0,
            escape(x_title),
            escape(y_title)
        );
    }

    /// Draws a line through points.
    pub fn line(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points
            .iter()
            .filter(|(x, y)| x.is_finite() && y.is_finite())
            .map(|&(x, y)| {
                let (x, y) = self.at(x, y);
                format!("{x:.1},{y:.1}")
            })
            .collect();
        let _ = write!(self.body, "<polyline class=\"{class}\" points=\"{}\" />", points.join(" "));
    }

    /// Draws lines through neighbouring points, with gaps where there is none.
    pub fn course(&mut self, class: &str, points: &[Option<(f64, f64)>]) {
        for run in points.split(Option::is_none) {
            let run: Vec<(f64, f64)> = run.iter().flatten().copied().collect();
            match run[..] {
                [] => {}
                // A single point gives no line.
                [(x, y)] => self.line(class, &[(x - 0.1, y), (x + 0.1, y)]),
                _ => self.line(class, &run),
            }
        }
    }

    /// Draws a horizontal line across the chart.
    pub fn level(&mut self, class: &str, y: f64) {
        self.line(class, &[(self.x.0, y), (self.x.1, y)]);
    }

    /// Draws a dot with a tooltip, and a label if there is one.
    pub fn dot(&mut self, class: &str, (x, y): (f64, f64), title: &str, label: Option<&str>) {
        let (x, y) = self.at(x, y);
        let _ = write!(
            self.body,
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"><title>{}</title></circle>",
            escape(title)
        );
        if let Some(label) = label {
            let width = LETTER * label.chars().count() as f64;
            let left = if x + 8.0 + width > WIDTH - RIGHT { x - 8.0 - width } else { x + 8.0 };
            let anchor = if left < x { ("end", x - 8.0) } else { ("start", x + 8.0) };
            // Where it would overlap another label, it moves to the nearest free line above or below.
            let covers = |y: f64| {
                let near = |&[from, to, at]: &[f64; 3]| left <= to && left + width >= from && (y - at).abs() < LINE;
                self.labels.iter().any(near)
            };
            let steps = (0..12).flat_map(|k| [f64::from(k), -f64::from(k)]).map(|k| y + 4.0 + k * LINE);
            let inside = |y: &f64| (TOP..self.height - BOTTOM).contains(y);
            let at = steps.filter(inside).find(|&y| !covers(y)).unwrap_or(y + 4.0);
            self.labels.push([left, left + width, at]);
            let _ = write!(
                self.body,
                "<text class=\"{class}\" x=\"{:.1}\" y=\"{at:.1}\" text-anchor=\"{}\">{}</text>",
                anchor.1,
                anchor.0,
                escape(label)
            );
        }
    }

    /// Draws bars from 0, one per unit of x.
    pub fn bars(&mut self, values: &[(f64, f64)]) {
        for &(x, value) in values {
            let ((left, top), (right, zero)) = (self.at(x - 0.4, value), self.at(x + 0.4, 0.0));
            let class = if value >= 0.0 { "gain" } else { "loss" };
            let _ = write!(
                self.body,
                "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\">\
                 <title>{x:.0} h: {value:+.1}</title></rect>",
                top.min(zero),
                right - left,
                (top - zero).abs().max(0.5)
            );
        }
    }

    /// Returns the chart as SVG for a page.
    pub fn finish(self, title: &str) -> String {
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\">{}</svg>",
            self.height,
            escape(title),
            self.body
        )
    }

    /// Returns the chart as an SVG file with a style sheet of its own.
    pub fn file(self, title: &str, style: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\">\n\
             <style>\n{style}</style>\n<rect class=\"page\" width=\"100%\" height=\"100%\" />\n{}\n</svg>\n",
            self.height,
            escape(title),
            self.body.replace("<polyline", "\n<polyline")
        )
    }
}

/// Draws a small chart of cumulative shares over a day: one line per class, from 0 to the maximum.
pub fn small(title: &str, lines: &[(&str, Vec<f64>)]) -> String {
    let most = lines.iter().flat_map(|(_, line)| line).fold(1.0f64, |a, &b| a.max(b));
    let mut body = String::from("<rect class=\"frame\" x=\"0.5\" y=\"0.5\" width=\"159\" height=\"79\" />");
    for (class, line) in lines {
        let last = line.len().saturating_sub(1).max(1) as f64;
        let points: Vec<String> = line
            .iter()
            .enumerate()
            .map(|(i, v)| format!("{:.1},{:.1}", 160.0 * i as f64 / last, 79.0 - 76.0 * v / most))
            .collect();
        let _ = write!(body, "<polyline class=\"{class}\" points=\"{}\" />", points.join(" "));
    }
    format!("<svg viewBox=\"0 0 160 80\" role=\"img\" aria-label=\"{}\">{body}</svg>", escape(title))
}

#[cfg(test)]
mod tests {
    use super::ticks;

    /// The ticks of a range from 736.0 to the next larger number filled the memory.
    #[test]
    fn ticks_of_a_range_narrower_than_its_precision_end() {
        let low = 736.0;
        assert!(ticks(low, f64::from_bits(f64::to_bits(low) + 1), 5).len() <= 11);
        assert_eq!(ticks(0.0, 1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
    }
}
