//! Dates of consecutive days, so that every day's times are true Unix times.

use anyhow::{Context, Result, ensure};

/// Days from 1970-01-01 to a `YYYY-MM-DD` of the proleptic Gregorian calendar.
///
/// # Errors
/// Quotes a text that is not a date of the calendar.
pub fn parse_date(text: &str) -> Result<i64> {
    let parts: Vec<&str> = text.split('-').collect();
    let numbers = parts
        .iter()
        .map(|p| p.parse::<i64>())
        .collect::<Result<Vec<_>, _>>()
        .ok()
        .filter(|n| n.len() == 3 && text.len() == 10);
    let date = numbers.with_context(|| format!("`{text}` is not a date like 2026-01-05"))?;
    // Years begin in March, so that the leap day is the last of its year.
    let (month, day) = (date[1], date[2]);
    let year = date[0] - i64::from(month <= 2);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100
        + day_of_year
        - 719_468;
    // A day that does not exist comes back as another one.
    ensure!(
        format_date(days) == text,
        "`{text}` is not a date of the calendar"
    );
    Ok(days)
}

/// `YYYY-MM-DD` of a count of days from 1970-01-01.
pub fn format_date(days: i64) -> String {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates_and_leap_days() {
        assert_eq!(parse_date("1970-01-01").unwrap(), 0);
        assert_eq!(parse_date("2026-01-05").unwrap(), 20_458);
        assert_eq!(
            format_date(parse_date("2024-02-28").unwrap() + 1),
            "2024-02-29"
        );
        assert_eq!(
            format_date(parse_date("2025-02-28").unwrap() + 1),
            "2025-03-01"
        );
        assert_eq!(
            format_date(parse_date("2025-12-31").unwrap() + 1),
            "2026-01-01"
        );
        for bad in ["2025-02-29", "2025-13-01", "2025-1-1", "today"] {
            assert!(parse_date(bad).is_err(), "{bad}");
        }
    }
}
