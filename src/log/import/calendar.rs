//! The few lines of calendar that importers need: a count of days as a date.
//!
//! Foreign logs carry Unix seconds or a weekday; `day.toml` wants `YYYY-MM-DD`. Days are counted from
//! 1970-01-01, so that a day and a time in Unix milliseconds convert by one multiplication.

/// The proleptic Gregorian date of the day `days` after 1970-01-01.
///
/// Counts in years that start in March, whose leap day comes last, within the 400-year cycle of 146,097
/// days.
pub fn date(days: u64) -> String {
    let shifted = days + 719_468; // days from 0000-03-01
    let cycle = shifted / 146_097;
    let day = shifted % 146_097;
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = 400 * cycle + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day_of_month:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_around_leap_days_and_century_ends() {
        for (days, text) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (15_865, "2013-06-09"),
            (18_010, "2019-04-24"),
            (19_782, "2024-02-29"),
            (20_453, "2025-12-31"),
            (20_454, "2026-01-01"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(date(days), text, "day {days}");
        }
    }
}
