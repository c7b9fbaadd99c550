//! Options that are numbers with limits: times and shares.

/// The most that an option may say, some thirty years; more is a mistake, and times in milliseconds overflow from it.
const MOST: f64 = 1e9;

/// Parses a time that may be 0.
///
/// # Errors
/// What the option must be.
pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.0..=MOST).contains(seconds));
    seconds.ok_or_else(|| format!("must be a number of seconds, 0 to {MOST:.0}"))
}

/// Parses a time that may not be 0.
///
/// # Errors
/// What the option must be.
pub fn some_seconds(text: &str) -> Result<f64, String> {
    let seconds = seconds(text).ok().filter(|seconds| *seconds > 0.0);
    seconds.ok_or_else(|| format!("must be a number of seconds above 0, at most {MOST:.0}"))
}

/// Parses a share of a whole.
///
/// # Errors
/// What the option must be.
pub fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "must be a share, 0 to 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_at_most_all() {
        assert_eq!((share("0"), share("0.01"), share("1")), (Ok(0.0), Ok(0.01), Ok(1.0)));
        assert!(["-1", "NaN", "1.01", "7", "half"].iter().all(|text| share(text).is_err()));
    }

    #[test]
    fn times_that_cannot_be_are_refused() {
        assert_eq!((seconds("0"), seconds("2.5"), some_seconds("1e9")), (Ok(0.0), Ok(2.5), Ok(1e9)));
        for text in ["-1", "NaN", "inf", "1e17", "an hour", ""] {
            assert!(seconds(text).is_err() && some_seconds(text).is_err(), "{text}");
        }
        assert!(some_seconds("0").is_err());
    }
}
