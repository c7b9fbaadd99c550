//! Losses of hindsight prices, and their gradients by the networks' outputs.
//!
//! Both networks take the same rows. The critic learns the distribution of a row's label by quantile regression, as shares of the
//! penalty on the same logit scale as bids, without bootstrapping. The bid is fitted to the label by squared error, so that it
//! becomes the label's mean given the row, plus `hedge` times the standard deviation of the critic's distribution.

use crate::env::{Lesson, Segment};
use crate::formulas::shared::LossFactors;

use super::kernels::quantile_huber;

/// The lessons of a batch as rows: `M` contracts at visited states.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LessonRows {
    /// `[M, features]` and `[M, tables]` of the actor.
    pub features: Vec<f32>,
    pub ids: Vec<u32>,
    /// `[M]`, as in [`Lesson`].
    pub starts: Vec<f32>,
    pub labels: Vec<f32>,
    pub weights: Vec<f32>,
}

impl LessonRows {
    /// Joins the lessons of segments.
    pub fn gather<'a>(segments: impl IntoIterator<Item = &'a Segment>) -> Self {
        let mut rows = Self::default();
        segments.into_iter().flat_map(|s| &s.lessons).for_each(|lesson| rows.push(lesson));
        rows
    }

    /// Adds a lesson.
    pub fn push(&mut self, lesson: &Lesson) {
        self.features.extend_from_slice(&lesson.features);
        self.ids.extend_from_slice(&lesson.ids);
        self.starts.extend_from_slice(&lesson.starts);
        self.labels.extend_from_slice(&lesson.labels);
        self.weights.extend_from_slice(&lesson.weights);
    }

    /// Adds other rows.
    pub fn append(&mut self, other: Self) {
        self.features.extend(other.features);
        self.ids.extend(other.ids);
        self.starts.extend(other.starts);
        self.labels.extend(other.labels);
        self.weights.extend(other.weights);
    }

    /// Returns some of the rows; the widths are those of the features and of the ids.
    pub fn select(&self, which: &[usize], (features, tables): (usize, usize)) -> Self {
        let rows = |all: &[f32]| which.iter().map(|&i| all[i]).collect();
        Self {
            features: which.iter().flat_map(|&i| &self.features[i * features..(i + 1) * features]).copied().collect(),
            ids: which.iter().flat_map(|&i| &self.ids[i * tables..(i + 1) * tables]).copied().collect(),
            starts: rows(&self.starts),
            labels: rows(&self.labels),
            weights: rows(&self.weights),
        }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns the sum of the rows' weights.
    pub fn weight(&self) -> f32 {
        self.weights.iter().sum()
    }

    /// Returns the factor on each row's weight for a mean over these rows.
    pub fn per_weight(&self) -> f32 {
        1.0 / self.weight().max(1e-12)
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Computes half the squared distance of bids from `aims`, in shares of the penalty, plus `anchor` times half the squared
/// outputs, summed over the rows by their weights times `per_weight`; writes the gradient by the actor's outputs.
///
/// # Shapes
/// - outputs, aims, gradient: `[M]`
pub fn bids(
    rows: &LessonRows,
    outputs: &[f32],
    aims: &[f32],
    anchor: f32,
    per_weight: f32,
    gradient: &mut [f32],
) -> f64 {
    let mut loss = 0.0;
    for (i, g) in gradient.iter_mut().enumerate() {
        let share = sigmoid(rows.starts[i] + outputs[i]);
        let (error, weight) = (share - aims[i], rows.weights[i] * per_weight);
        loss += f64::from(0.5 * weight * (error * error + anchor * outputs[i] * outputs[i]));
        *g = weight * (error * share * (1.0 - share) + anchor * outputs[i]);
    }
    loss
}

/// Computes the quantile Huber loss of the critic's distribution of the labels, summed over the rows by their weights times
/// `per_weight`; writes the gradient by its outputs.
///
/// # Shapes
/// - outputs, gradient: `[M, Q]`, levels: `[Q]`
pub fn distribution(
    rows: &LessonRows,
    outputs: &[f32],
    levels: &[f32],
    by: &LossFactors,
    per_weight: f32,
    gradient: &mut [f32],
) -> f64 {
    let q = levels.len();
    let mut shares = vec![0.0; q];
    let mut loss = 0.0;
    for (i, (outputs, gradient)) in outputs.chunks_exact(q).zip(gradient.chunks_exact_mut(q)).enumerate() {
        for (share, output) in shares.iter_mut().zip(outputs) {
            *share = sigmoid(rows.starts[i] + output);
        }
        let weight = rows.weights[i] * per_weight;
        let row = quantile_huber(&shares, &rows.labels[i..=i], levels, 1.0, by, weight, gradient);
        loss += f64::from(weight * row);
        for (g, share) in gradient.iter_mut().zip(&shares) {
            *g *= share * (1.0 - share);
        }
    }
    loss
}

/// Returns the targets of bids: the labels, plus `hedge` standard deviations of the critic's distribution, within the penalty.
///
/// # Shapes
/// - outputs: `[M, Q]`; result: `[M]`
pub fn aims(rows: &LessonRows, outputs: &[f32], hedge: f32) -> Vec<f32> {
    if hedge == 0.0 {
        return rows.labels.clone();
    }
    let q = outputs.len() / rows.len().max(1);
    let spread = |(i, outputs): (usize, &[f32])| -> f32 {
        let shares = outputs.iter().map(|output| sigmoid(rows.starts[i] + output));
        let mean = shares.clone().sum::<f32>() / q as f32;
        let variance = shares.map(|share| (share - mean) * (share - mean)).sum::<f32>() / q as f32;
        (rows.labels[i] + hedge * variance.sqrt()).clamp(0.0, 1.0)
    };
    outputs.chunks_exact(q).enumerate().map(spread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::factors::loss_factors;

    fn rows() -> LessonRows {
        LessonRows {
            starts: vec![0.3, -1.2, 0.0, 2.0],
            labels: vec![0.1, 0.9, 0.45, 1.0],
            weights: vec![1.0, 0.2, 0.7, 0.4],
            ..LessonRows::default()
        }
    }

    fn slopes(at: &[f32], loss: impl Fn(&[f32]) -> f64) -> Vec<f64> {
        let step = 1e-2;
        let mut moved = at.to_vec();
        (0..at.len())
            .map(|i| {
                moved[i] = at[i] + step;
                let high = loss(&moved);
                moved[i] = at[i] - step;
                let low = loss(&moved);
                moved[i] = at[i];
                (high - low) / f64::from(2.0 * step)
            })
            .collect()
    }

    fn turning_at(kappa: f32) -> LossFactors {
        let mut settings = crate::settings::Settings::default();
        settings.learner.kappa = kappa.into();
        loss_factors(&settings)
    }

    #[test]
    fn the_gradient_of_the_bids_is_the_slope_of_their_loss() {
        let rows = rows();
        let outputs = [0.4, -0.1, 0.8, -0.5];
        let mut gradient = [0.0; 4];
        bids(&rows, &outputs, &rows.labels, 0.05, rows.per_weight(), &mut gradient);
        let expected = slopes(&outputs, |o| bids(&rows, o, &rows.labels, 0.05, rows.per_weight(), &mut [0.0; 4]));
        for (g, slope) in gradient.iter().zip(expected) {
            assert!((f64::from(*g) - slope).abs() < 1e-5, "{g} is not {slope}");
        }
    }

    #[test]
    fn the_gradient_of_the_distribution_is_the_slope_of_its_loss() {
        let rows = rows();
        let levels = [0.1, 0.5, 0.9];
        let outputs: Vec<f32> = (0..12).map(|i| (i * 5 % 7) as f32 * 0.4 - 1.1).collect();
        let mut gradient = [0.0; 12];
        let at = |o: &[f32], g: &mut [f32]| distribution(&rows, o, &levels, &turning_at(0.2), rows.per_weight(), g);
        at(&outputs, &mut gradient);
        let expected = slopes(&outputs, |o| at(o, &mut [0.0; 12]));
        assert!(gradient.iter().any(|g| g.abs() > 1e-3));
        for (g, slope) in gradient.iter().zip(expected) {
            assert!((f64::from(*g) - slope).abs() < 2e-4, "{g} is not {slope}");
        }
    }

    #[test]
    fn the_distribution_learns_the_quantiles_and_a_hedge_adds_their_spread() {
        // One row, whose label is 0.2 three times in four and else 0.8.
        let levels = [0.25, 0.5, 0.9];
        let mut outputs = [0.0f32; 3];
        for step in 0..40_000 {
            let label = if step % 4 == 3 { 0.8 } else { 0.2 };
            let rows =
                LessonRows { starts: vec![0.0], labels: vec![label], weights: vec![1.0], ..LessonRows::default() };
            let mut gradient = [0.0; 3];
            distribution(&rows, &outputs, &levels, &turning_at(0.005), rows.per_weight(), &mut gradient);
            let rate = 8.0 / (1.0 + step as f32 / 2000.0);
            outputs.iter_mut().zip(gradient).for_each(|(o, g)| *o -= rate * g);
        }
        let shares = outputs.map(sigmoid);
        for (share, expected) in shares.iter().zip([0.2, 0.2, 0.8]) {
            assert!((share - expected).abs() < 0.03, "{shares:?}");
        }
        let rows = LessonRows { starts: vec![0.0], labels: vec![0.35], weights: vec![1.0], ..LessonRows::default() };
        assert_eq!(aims(&rows, &outputs, 0.0), [0.35]);
        let hedged = aims(&rows, &outputs, 0.5)[0];
        assert!((hedged - 0.35 - 0.5 * 0.283).abs() < 0.02, "{hedged}");
        assert_eq!(aims(&rows, &outputs, 9.0), [1.0], "within the penalty");
    }
}
