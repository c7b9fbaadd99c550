//! How well values predict what exposures brought: the model's beside the logged ones and two simpler corrections of those.
//!
//! The simpler corrections are made from the model's training days: an isotonic calibration of all predictions, and for each ad the
//! ratio of outcome to prediction, shrunk towards 1 as if a number of impressions had come as predicted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::formulas::host::{logistic, poisson};

use super::join::{JoinCounts, Joined};
use super::model::{Predictor, ValueModel};
use super::sample::{DENSE, Sample};

/// Impressions at the prediction that a ratio of an ad is shrunk by: of charges, and of clicks by their expected number.
const CHARGE_PRIOR: f64 = 20.0;
const CLICK_PRIOR: f64 = 20.0;

/// One prediction with its outcome.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub predicted: f64,
    pub outcome: f64,
    pub ad: u64,
    pub slot: u32,
}

/// Click and charge points of a day, under one set of values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Points {
    pub clicks: Vec<Point>,
    /// Clicks of contract rows alone.
    pub contract_clicks: Vec<Point>,
    /// Auction rows with a logged eCPM.
    pub charges: Vec<Point>,
}

/// A group of exposures: what was predicted of it and what came.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bin {
    /// The tenth by prediction, the ad or the slot.
    pub of: String,
    pub count: u64,
    pub predicted: f64,
    pub outcome: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Calibration {
    pub deciles: Vec<Bin>,
    pub ads: Vec<Bin>,
    pub slots: Vec<Bin>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClickReport {
    /// Mean logistic loss: the model's, the logged prediction's, and that of the simpler corrections.
    pub log_loss: f64,
    pub log_loss_logged: f64,
    pub log_loss_isotonic: Option<f64>,
    pub log_loss_ad_ratios: Option<f64>,
    /// The model's and the logged prediction's on auction and on contract rows.
    pub auction: Option<[f64; 2]>,
    pub contract: Option<[f64; 2]>,
    pub calibration: Calibration,
    pub calibration_logged: Calibration,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChargeReport {
    /// Mean Poisson deviance per auction impression.
    pub deviance: f64,
    pub deviance_logged: f64,
    pub deviance_isotonic: Option<f64>,
    pub deviance_ad_ratios: Option<f64>,
    pub calibration: Calibration,
    pub calibration_logged: Calibration,
}

/// Difference of the losses per exposure at two sets of values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossDifference {
    /// Mean difference, in percent of the mean loss at the second set; negative: the first set is better.
    pub difference: f64,
    /// 95 % interval over exposures, by the normal distribution.
    pub interval: [f64; 2],
    pub exposures: u64,
}

impl LossDifference {
    /// Compares losses of the same exposures; `None` for fewer than two.
    pub fn of(losses: &[f64], against: &[f64]) -> Option<Self> {
        let n = losses.len() as f64;
        if losses.len() < 2 {
            return None;
        }
        let differences = || losses.iter().zip(against).map(|(own, other)| own - other);
        let mean = differences().sum::<f64>() / n;
        let variance = differences().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let half = 1.96 * (variance / n).sqrt();
        let percent = 100.0 * n / against.iter().sum::<f64>();
        let interval = [mean - half, mean + half].map(|bound| percent * bound);
        Some(Self { difference: percent * mean, interval, exposures: losses.len() as u64 })
    }

    /// Returns whether the first set is better by the interval.
    pub fn is_better(&self) -> bool {
        self.interval[1] < 0.0
    }

    /// Returns `better`, `worse` or `level`, as the interval says.
    pub fn verdict(&self) -> &'static str {
        match self.interval {
            [_, high] if high < 0.0 => "better",
            [low, _] if low > 0.0 => "worse",
            _ => "level",
        }
    }
}

impl std::fmt::Display for LossDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { difference, interval: [low, high], exposures } = self;
        write!(f, "{difference:+.2} % of the loss, 95 % {low:+.2}..{high:+.2} over {exposures} exposures")
    }
}

/// A day's report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ValueReport {
    pub log: String,
    pub exposures: u64,
    pub click: ClickReport,
    /// `null` where no auction ad was exposed.
    pub charge: Option<ChargeReport>,
    pub joined: JoinCounts,
}

impl Points {
    /// The points of joined exposures: the logged prediction's, or those of a model.
    pub fn of(joined: &Joined, fields: usize, predictor: Option<&mut Predictor<&ValueModel>>) -> Self {
        let mut corrections = vec![[0.0f32; 2]; joined.samples.len()];
        if let Some(predictor) = predictor {
            let mut dense = Vec::new();
            const AT_ONCE: usize = 4096;
            for (i, samples) in joined.samples.chunks(AT_ONCE).enumerate() {
                dense.clear();
                samples.iter().for_each(|s| dense.extend_from_slice(&s.seen.dense));
                debug_assert_eq!(dense.len(), samples.len() * DENSE);
                let ids = &joined.ids[i * AT_ONCE * fields..][..samples.len() * fields];
                corrections[i * AT_ONCE..][..samples.len()].copy_from_slice(&predictor.corrections(&dense, ids));
            }
        }
        let mut points = Self::default();
        for ((sample, &(ad, slot)), [c, q]) in joined.samples.iter().zip(&joined.places).zip(corrections) {
            let predicted = 1.0 / (1.0 + (-f64::from(sample.seen.logit + q)).exp());
            let click = Point { predicted, outcome: f64::from(u8::from(sample.clicked)), ad, slot };
            points.clicks.push(click);
            if is_charged(sample) {
                let predicted = f64::from(sample.seen.charge) * f64::from(c).exp();
                points.charges.push(Point { predicted, outcome: sample.charged.into(), ad, slot });
            }
            if !sample.auction {
                points.contract_clicks.push(click);
            }
        }
        points
    }

    /// Appends another day's points.
    pub fn extend(&mut self, other: Self) {
        self.clicks.extend(other.clicks);
        self.contract_clicks.extend(other.contract_clicks);
        self.charges.extend(other.charges);
    }
}

fn mean(points: &[Point], loss: impl Fn(&Point) -> f64) -> Option<f64> {
    (!points.is_empty()).then(|| points.iter().map(loss).sum::<f64>() / points.len() as f64)
}

/// Returns the loss of each joined exposure under the logged predictions or those of a model: logistic loss of the click, and half the
/// Poisson deviance of an auction ad's charge over `dispersion`, as training adds them.
pub fn losses(
    joined: &Joined,
    fields: usize,
    predictor: Option<&mut Predictor<&ValueModel>>,
    dispersion: f64,
) -> Vec<f64> {
    let points = Points::of(joined, fields, predictor);
    let mut losses: Vec<f64> = points.clicks.iter().map(click_loss).collect();
    let charged = losses.iter_mut().zip(&joined.samples).filter(|(_, sample)| is_charged(sample));
    for ((loss, _), point) in charged.zip(&points.charges) {
        *loss += 0.5 * charge_loss(point) / dispersion;
    }
    losses
}

/// Returns whether an exposure's charge was predicted.
fn is_charged(sample: &Sample) -> bool {
    sample.auction && sample.seen.charge > 0.0
}

/// Logistic loss of a probability.
fn click_loss(p: &Point) -> f64 {
    let bounded = p.predicted.clamp(1e-9, 1.0 - 1e-9);
    logistic(p.outcome, (bounded / (1.0 - bounded)).ln())
}

fn charge_loss(p: &Point) -> f64 {
    2.0 * poisson(p.outcome, p.predicted)
}

/// Corrections of predictions that are learned without a model.
struct Simple {
    /// Predictions, ascending, and what they are mapped to.
    isotonic: Vec<(f64, f64)>,
    ratios: BTreeMap<u64, f64>,
}

impl Simple {
    fn learn(points: &[Point], prior: f64) -> Option<Self> {
        let whole: f64 = points.iter().map(|p| p.predicted).sum();
        (whole > 0.0).then(|| {
            let unit = whole / points.len() as f64;
            // A click is worth counting by itself, a charge in units of the mean prediction.
            let prior = if points.iter().all(|p| p.outcome == 0.0 || p.outcome == 1.0) { prior } else { prior * unit };
            let mut sums: BTreeMap<u64, [f64; 2]> = BTreeMap::new();
            for p in points {
                let sum = sums.entry(p.ad).or_default();
                sum[0] += p.outcome;
                sum[1] += p.predicted;
            }
            let ratio = |[outcome, predicted]: [f64; 2]| (outcome + prior) / (predicted + prior);
            Self { isotonic: isotonic(points), ratios: sums.into_iter().map(|(ad, sum)| (ad, ratio(sum))).collect() }
        })
    }

    fn calibrated(&self, p: &Point) -> Point {
        let at = self.isotonic.partition_point(|(from, _)| *from <= p.predicted);
        Point { predicted: self.isotonic[at.saturating_sub(1)].1, ..*p }
    }

    fn scaled(&self, p: &Point) -> Point {
        Point { predicted: p.predicted * self.ratios.get(&p.ad).copied().unwrap_or(1.0), ..*p }
    }
}

/// The ratios of outcome to prediction of each ad, shrunk towards 1: of charges, and of clicks.
pub fn ad_ratios(points: &Points) -> (BTreeMap<u64, f64>, BTreeMap<u64, f64>) {
    let of = |points: &[Point], prior| Simple::learn(points, prior).map(|simple| simple.ratios).unwrap_or_default();
    (of(&points.charges, CHARGE_PRIOR), of(&points.clicks, CLICK_PRIOR))
}

/// Pools adjacent violators: the rising step function that is nearest to the outcomes, as (from prediction, value). Points of equal
/// prediction have one value, so they are pooled first.
fn isotonic(points: &[Point]) -> Vec<(f64, f64)> {
    let mut sorted: Vec<&Point> = points.iter().collect();
    sorted.sort_by(|a, b| a.predicted.total_cmp(&b.predicted));
    let mut blocks: Vec<(f64, f64, f64)> = Vec::new();
    for equal in sorted.chunk_by(|a, b| a.predicted == b.predicted) {
        blocks.push((equal[0].predicted, equal.iter().map(|p| p.outcome).sum(), equal.len() as f64));
        while let [.., (_, below, n), (_, above, m)] = blocks[..]
            && below * m >= above * n
        {
            blocks.pop();
            if let Some(last) = blocks.last_mut() {
                (last.1, last.2) = (below + above, n + m);
            }
        }
    }
    blocks.into_iter().map(|(from, sum, n)| (from, sum / n)).collect()
}

fn calibration(points: &[Point]) -> Calibration {
    let bin = |of: String, points: &[&Point]| {
        let n = points.len() as f64;
        Bin {
            of,
            count: points.len() as u64,
            predicted: points.iter().map(|p| p.predicted).sum::<f64>() / n,
            outcome: points.iter().map(|p| p.outcome).sum::<f64>() / n,
        }
    };
    let mut sorted: Vec<&Point> = points.iter().collect();
    sorted.sort_by(|a, b| a.predicted.total_cmp(&b.predicted));
    let n = sorted.len();
    let tenths = (0..10).map(|d| (d, &sorted[d * n / 10..(d + 1) * n / 10])).filter(|(_, tenth)| !tenth.is_empty());
    let deciles = tenths.map(|(d, tenth)| bin((d + 1).to_string(), tenth)).collect();
    let by = |key: fn(&Point) -> u64| {
        let mut groups: BTreeMap<u64, Vec<&Point>> = BTreeMap::new();
        points.iter().for_each(|p| groups.entry(key(p)).or_default().push(p));
        let mut bins: Vec<Bin> = groups.into_iter().map(|(of, points)| bin(of.to_string(), &points)).collect();
        bins.sort_by_key(|bin| std::cmp::Reverse(bin.count));
        bins
    };
    Calibration { deciles, ads: by(|p| p.ad), slots: by(|p| p.slot.into()) }
}

/// Compares a model with the logged predictions on one day; `learned` are the logged points of the model's training days, from
/// which the simpler corrections are made.
pub fn compare(
    joined: &Joined,
    fields: usize,
    predictor: &mut Predictor<&ValueModel>,
    learned: Option<&Points>,
) -> ValueReport {
    let logged = Points::of(joined, fields, None);
    let model = Points::of(joined, fields, Some(predictor));
    let simple = |points: &[Point], prior| Simple::learn(points, prior);
    let click_simple = learned.and_then(|l| simple(&l.clicks, CLICK_PRIOR));
    let charge_simple = learned.and_then(|l| simple(&l.charges, CHARGE_PRIOR));
    let pair = |model: &[Point], logged: &[Point]| Some([mean(model, click_loss)?, mean(logged, click_loss)?]);
    let auction = |points: &Points| -> Vec<Point> {
        points.clicks.iter().zip(&joined.samples).filter(|(_, s)| s.auction).map(|(p, _)| *p).collect()
    };
    ValueReport {
        log: joined.log.name().to_owned(),
        exposures: joined.samples.len() as u64,
        click: ClickReport {
            log_loss: mean(&model.clicks, click_loss).unwrap_or(0.0),
            log_loss_logged: mean(&logged.clicks, click_loss).unwrap_or(0.0),
            log_loss_isotonic: click_simple
                .as_ref()
                .and_then(|s| mean(&logged.clicks, |p| click_loss(&s.calibrated(p)))),
            log_loss_ad_ratios: click_simple.as_ref().and_then(|s| mean(&logged.clicks, |p| click_loss(&s.scaled(p)))),
            auction: pair(&auction(&model), &auction(&logged)),
            contract: pair(&model.contract_clicks, &logged.contract_clicks),
            calibration: calibration(&model.clicks),
            calibration_logged: calibration(&logged.clicks),
        },
        charge: mean(&model.charges, charge_loss).map(|deviance| ChargeReport {
            deviance,
            deviance_logged: mean(&logged.charges, charge_loss).unwrap_or(0.0),
            deviance_isotonic: charge_simple
                .as_ref()
                .and_then(|s| mean(&logged.charges, |p| charge_loss(&s.calibrated(p)))),
            deviance_ad_ratios: charge_simple
                .as_ref()
                .and_then(|s| mean(&logged.charges, |p| charge_loss(&s.scaled(p)))),
            calibration: calibration(&model.charges),
            calibration_logged: calibration(&logged.charges),
        }),
        joined: joined.counts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(predicted: f64, outcome: f64) -> Point {
        Point { predicted, outcome, ad: 1, slot: 1 }
    }

    #[test]
    fn isotonic_calibration_rises_and_keeps_the_mean() {
        let points = [(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 0.0), (5.0, 9.0)].map(|(p, o)| point(p, o));
        let steps = isotonic(&points);
        assert!(steps.windows(2).all(|w| w[0].1 < w[1].1), "{steps:?}");
        let simple = Simple { isotonic: steps, ratios: BTreeMap::new() };
        let sum: f64 = points.iter().map(|p| simple.calibrated(p).predicted).sum();
        assert!((sum - 15.0).abs() < 1e-9);
        assert_eq!(simple.calibrated(&point(0.5, 0.0)).predicted, 1.0, "below all: the first step");
    }

    /// Points of equal prediction were pooled one by one: a click that came last in the file made the probability 1.
    #[test]
    fn equal_predictions_get_one_value_in_any_order() {
        let points = [(0.1, 0.0), (0.2, 0.0), (0.2, 0.0), (0.2, 0.0), (0.2, 1.0)].map(|(p, o)| point(p, o));
        let mut turned = points;
        turned.reverse();
        for points in [points, turned] {
            assert_eq!(isotonic(&points), [(0.1, 0.0), (0.2, 0.25)]);
        }
    }

    #[test]
    fn a_difference_of_losses_is_judged_by_its_interval() {
        let old: Vec<f64> = (0..1000).map(|i| 1.0 + f64::from(i % 7)).collect();
        let shifted = |by: f64| old.iter().enumerate().map(|(i, l)| l + by + (i % 3) as f64 - 1.0).collect::<Vec<_>>();
        for (by, verdict) in [(-0.2, "better"), (0.0, "level"), (0.2, "worse")] {
            let found = LossDifference::of(&shifted(by), &old).unwrap();
            assert_eq!((found.verdict(), found.is_better(), found.exposures), (verdict, by < 0.0, 1000), "{found}");
        }
        let found = LossDifference::of(&[2.0, 2.0], &[4.0, 4.0]).unwrap();
        assert_eq!((found.difference, found.interval), (-50.0, [-50.0, -50.0]));
        assert_eq!(LossDifference::of(&[1.0], &[1.0]), None);
    }

    #[test]
    fn ratios_of_ads_are_shrunk_towards_one() {
        let points: Vec<Point> = (0..100).map(|_| point(2.0, 3.0)).collect();
        let simple = Simple::learn(&points, 20.0).unwrap();
        let ratio = simple.ratios[&1];
        assert!((ratio - (300.0 + 40.0) / (200.0 + 40.0)).abs() < 1e-12, "{ratio}");
        let other = Point { ad: 2, ..point(2.0, 0.0) };
        assert_eq!(simple.scaled(&other).predicted, 2.0, "an ad never seen stays as predicted");
    }
}
