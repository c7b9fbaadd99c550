//! Day directories and windows of days, by date.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use jiff::civil::Date;

use crate::log::day::Day;

/// A day directory or a window of a day.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DayDir {
    pub date: Date,
    /// Minute of the day at which a window begins; `None` for a whole day.
    pub minute: Option<u64>,
    pub dir: PathBuf,
}

impl DayDir {
    /// Returns the date, and for a window the time at which it begins.
    pub fn label(&self) -> String {
        self.minute.map_or_else(|| self.date.to_string(), |minute| window_label(self.date, minute))
    }

    /// Returns whether the day has begun and not ended at `now_ms`, Unix milliseconds. One that cannot be read is for the check to tell of.
    fn is_under_way(&self, now_ms: u64) -> bool {
        match Day::read(&self.dir) {
            Ok(Some(day)) => day.contains(now_ms),
            // Without a calendar it is a UTC day.
            Ok(None) => Day::of_timestamp(now_ms).date == self.date.to_string(),
            Err(_) => false,
        }
    }
}

/// Returns the label of a window, from its day and the minute of the day at which it begins.
pub fn window_label(date: Date, minute: u64) -> String {
    format!("{date}T{:02}-{:02}", minute / 60, minute % 60)
}

/// Parses the name of a day directory.
fn date_of(name: &str, pattern: &str) -> Option<Date> {
    Date::strptime(pattern, name).ok()
}

/// Checks that a pattern parses a date from the name that it gives for this date.
///
/// # Errors
/// A pattern that does not name a day.
pub fn check_pattern(pattern: &str) -> anyhow::Result<()> {
    let date = Date::constant(2026, 11, 23);
    let name = jiff::fmt::strtime::format(pattern, date).with_context(|| format!("`days.pattern` = \"{pattern}\""))?;
    ensure!(
        date_of(&name, pattern) == Some(date),
        "`days.pattern` = \"{pattern}\" does not name a day; use %Y, %m and %d, for example \"day=%Y-%m-%d\""
    );
    Ok(())
}

/// Finds the day directories in `folder`, oldest first; other entries are ignored.
///
/// # Errors
/// A folder that cannot be listed.
pub fn find(folder: &Path, pattern: &str) -> anyhow::Result<Vec<DayDir>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list `days.dir`, {}", folder.display()))?;
    let mut days = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
        let dir = entry.path();
        if let Some(date) = entry.file_name().to_str().and_then(|name| date_of(name, pattern))
            && dir.is_dir()
        {
            days.push(DayDir { date, minute: None, dir });
        }
    }
    days.sort();
    Ok(days)
}

/// Removes the newest of the `days`, which are sorted, and returns it if it is under way at `now_ms`, Unix milliseconds.
pub fn take_under_way(days: &mut Vec<DayDir>, now_ms: u64) -> Option<DayDir> {
    days.pop_if(|newest| newest.is_under_way(now_ms))
}

/// Returns why the newest day is too old, with the dates that are missing, or that it is still to come; `None` if it is at most `max_age` days older
/// than `today`, or if `max_age` is 0.
pub fn stale(newest: Date, today: Date, max_age: u32) -> Option<String> {
    let age = newest.until(today).map_or(0, |span| span.get_days());
    // East of Greenwich it is tomorrow already.
    if max_age > 0 && age < -1 {
        return Some(format!(
            "the newest day is {newest}, {} days after today's UTC date: it would hide that days are missing. Remove it, or correct its date; \
             days.max_age_days = 0 takes days of any date",
            -age
        ));
    }
    if max_age == 0 || i64::from(age) <= i64::from(max_age) {
        return None;
    }
    let (first, last) = (newest.tomorrow().ok()?, today.yesterday().ok()?);
    let missing = if first == last { first.to_string() } else { format!("{first} to {last}") };
    Some(format!(
        "{missing} did not arrive: the newest day is {newest}, {age} days before today's UTC date (days.max_age_days = \
         {max_age}). Deliver what is missing and start the job again; 0 takes days of any age"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newest_day_that_is_too_old_is_told_of_with_the_dates_that_are_missing() {
        let day = |d| Date::constant(2026, 11, d);
        for (newest, today, max_age) in [(22, 23, 1), (23, 23, 1), (24, 23, 1), (21, 23, 2), (1, 23, 0)] {
            assert_eq!(stale(day(newest), day(today), max_age), None, "{newest} {today} {max_age}");
        }
        assert!(stale(day(25), day(23), 1).unwrap().contains("2 days after today"));
        assert_eq!(stale(day(25), day(23), 0), None);
        assert!(stale(day(21), day(23), 1).unwrap().starts_with("2026-11-22 did not arrive"));
        assert!(stale(day(20), day(23), 2).unwrap().starts_with("2026-11-21 to 2026-11-22 did not arrive"));
        assert!(stale(Date::constant(2025, 11, 23), day(23), 30).unwrap().contains("365 days before"));
    }

    /// A night took today's directory, which a server was writing, for the newest day, found it suspect and trained nothing.
    #[test]
    fn a_newest_day_is_taken_away_while_it_is_under_way() {
        let folder = tempfile::tempdir().unwrap();
        let day = |d, calendar: &str| {
            let date = Date::constant(2026, 11, d);
            let dir = folder.path().join(date.to_string());
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("day.toml"), calendar).unwrap();
            DayDir { date, minute: None, dir }
        };
        let bare = |d| {
            let day = day(d, "");
            std::fs::remove_file(day.dir.join("day.toml")).unwrap();
            day
        };
        // 2026-11-23 at 16:30 UTC: half an hour after midnight in UTC+8.
        let now = "2026-11-23T16:30:00Z".parse::<jiff::Timestamp>().unwrap().as_millisecond().cast_unsigned();
        let left = |newest: DayDir| {
            let mut days = vec![bare(20), newest.clone()];
            let taken = take_under_way(&mut days, now);
            assert!(taken.is_none_or(|taken| taken == newest));
            days.len()
        };
        let east = |d| day(d, &format!("date = \"2026-11-{d}\"\nutc_offset_minutes = 480\n"));
        assert_eq!([left(bare(22)), left(bare(23)), left(bare(24))], [2, 1, 2]);
        assert_eq!([left(east(23)), left(east(24)), left(east(25))], [2, 1, 2]);
        assert_eq!(left(day(23, "no calendar")), 2);
        assert_eq!(take_under_way(&mut vec![], now), None);
    }

    #[test]
    fn a_pattern_has_to_name_a_day() {
        for good in ["%Y-%m-%d", "day=%Y%m%d", "%Y_%m_%d"] {
            check_pattern(good).unwrap();
        }
        for bad in ["%Y-%m", "logs", "", "%H"] {
            assert!(check_pattern(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn other_entries_are_left_aside() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["2026-11-02", "2026-11-01", "2026-11-31", "readme", ".admix", "2026-11-03.tmp"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("2026-11-04"), "a file").unwrap();
        let found = find(folder.path(), "%Y-%m-%d").unwrap();
        let dates: Vec<String> = found.iter().map(|day| day.date.to_string()).collect();
        assert_eq!(dates, ["2026-11-01", "2026-11-02"]);
    }
}
