//! Deviation of a day from its forecast, and the inputs that a regression derives from it.

/// Number of inputs that describe the moment.
pub(super) const BASE: usize = 7;
/// Number of inputs of a regression: those of the moment, and the same times the world's calm.
pub(super) const INPUTS: usize = 2 * BASE;
/// Weight of the forecast in a ratio, requests.
const PRIOR: f64 = 20.0;
/// Limit of the logarithm of a ratio.
pub(super) const MOST: f64 = 2.0;

/// A day's volume over its forecast so far, as logarithms: over ten minutes, an hour, and since midnight.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Deviation {
    pub minutes: f64,
    pub hour: f64,
    pub day: f64,
}

impl Deviation {
    /// Computes the deviation from `[seen, expected]` requests over ten minutes, an hour and the day. A replay that is thinned
    /// to a share `thinning` of the requests sees and expects that share.
    pub fn of(levels: [[f64; 2]; 3], thinning: f64) -> Self {
        let prior = PRIOR * thinning;
        let [minutes, hour, day] =
            levels.map(|[seen, expected]| ((seen + prior) / (expected + prior)).ln().clamp(-MOST, MOST));
        Self { minutes, hour, day }
    }

    /// Returns the inputs. `bias`: mean deviation of the other days. `calm`: that of the world, 0 to 1.
    /// `elapsed`: share of the forecast traffic before now.
    pub(super) fn inputs(self, bias: f64, calm: f64, elapsed: f64) -> [f64; INPUTS] {
        let base: [f64; BASE] = [1.0, bias, bias * elapsed, self.day, self.day * elapsed, self.minutes, self.hour];
        std::array::from_fn(|i| if i < BASE { base[i] } else { calm * base[i - BASE] })
    }
}
