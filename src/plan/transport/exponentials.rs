//! Vectorised exponentials.

use multiversion::multiversion;

/// Replaces each of `x`, from -700 to 0, by `exp(x)`, with a relative error of at most `4 * EPSILON`.
///
/// The C library's function takes one number at a time, which was a quarter of the time of replanning. This one is vectorised
/// and gives the same bits on every processor.
#[multiversion(targets = "simd")]
pub fn exponentials(x: &mut [f64]) {
    /// Adding it to a small number rounds that to an integer, which then is in the lowest bits, plus the exponent bias.
    const ROUND: f64 = 6_755_399_441_055_744.0 + 1023.0;
    /// `ln 2` in two parts; the first has so few bits that its small multiples are exact.
    const LN2: (f64, f64) = (0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10);
    /// `1 / k!`, from the last.
    const TAYLOR: [f64; 13] = [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    for x in x {
        let rounded = *x * std::f64::consts::LOG2_E + ROUND;
        let whole = rounded - ROUND;
        let rest = (*x - whole * LN2.0) - whole * LN2.1;
        let mut sum = 0.0;
        for c in TAYLOR {
            sum = sum * rest + c;
        }
        *x = sum * f64::from_bits(rounded.to_bits() << 52);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_those_of_the_library() {
        let mut x: Vec<f64> = (0..200_003).map(|i| f64::from(i) * -700.0 / 200_003.0).chain([-1e-300, -0.0]).collect();
        let expected: Vec<f64> = x.iter().map(|x| x.exp()).collect();
        exponentials(&mut x);
        for (x, e) in x.iter().zip(expected) {
            assert!((x - e).abs() <= 4.0 * f64::EPSILON * e, "{x} is not {e}");
        }
        assert_eq!(x[0], 1.0);
    }
}
