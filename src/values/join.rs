//! Exposures joined to their requests, as samples of the value model. What does not join is counted by what is wrong with it
//! ([`JoinCounts`]), never dropped in silence. `log::exposure` reads the rows, and joins them for the `logged` baseline and
//! `data check`, with counts of its own.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::log::corrected::asked;
use crate::log::error::LogError;
use crate::log::row_index::RowIndex;
use crate::log::schema::AdType;
use crate::log::table::{self, Table};
use crate::log::{self, CompileOptions, CompiledLog, exposure};

use super::Fields;
use super::fields::FieldError;
use super::sample::{Sample, Seen};

/// What became of the rows of exposure tables. Findings of a run hold it: a reason that they lack is 0, so that a run of an
/// older program can be resumed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JoinCounts {
    pub rows: u64,
    /// Rows that became samples.
    pub samples: u64,
    pub bad: u64,
    /// Exposures without a request in the log.
    pub unknown_requests: u64,
    /// Exposures of a request that already had one; the first counts.
    pub repeated: u64,
    /// Ads that are not in the queue of their request, or may not be shown there.
    pub not_in_queue: u64,
    /// Contract exposures that were charged; the charge is not learned from.
    pub charged_contracts: u64,
    /// Auction exposures with a logged eCPM of 0 that were charged: 0 stays 0.
    pub charged_at_zero: u64,
}

impl JoinCounts {
    pub fn add(&mut self, other: &Self) {
        // Not `..`: a count that is added does not compile until it is summed here.
        let Self { rows, samples, bad, unknown_requests, repeated, not_in_queue, charged_contracts, charged_at_zero } =
            *other;
        self.rows += rows;
        self.samples += samples;
        self.bad += bad;
        self.unknown_requests += unknown_requests;
        self.repeated += repeated;
        self.not_in_queue += not_in_queue;
        self.charged_contracts += charged_contracts;
        self.charged_at_zero += charged_at_zero;
    }

    /// What is wrong with the rows, in words; `None` where nothing is.
    pub fn complaint(&self) -> Option<String> {
        let named = [
            (self.bad, "are bad"),
            (self.unknown_requests, "have no request in the log"),
            (self.repeated, "repeat one of their request"),
            (self.not_in_queue, "show an ad that may not be shown there"),
            (self.charged_contracts, "charge a contract"),
            (self.charged_at_zero, "charge an ad whose logged eCPM is 0"),
        ];
        let wrong: Vec<String> = named.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        (!wrong.is_empty()).then(|| format!("of {} exposures {}", self.rows, wrong.join(", ")))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error("{}: no joined_exposure.tsv (or .tsv.gz, .tsv.zst, .parquet); values are learned from exposures", dir.display())]
    NoTable { dir: PathBuf },
    #[error("{}: none of its {rows} exposures can be used{}", dir.display(), first.as_ref().map(|f| format!("; the first bad one: {f}")).unwrap_or_default())]
    Nothing { dir: PathBuf, rows: u64, first: Option<String> },
}

/// A day's exposures, joined.
pub struct Joined {
    pub log: CompiledLog,
    pub samples: Vec<Sample>,
    /// `fields` ids of each sample.
    pub ids: Vec<u64>,
    /// Request of each sample.
    pub requests: Vec<u64>,
    /// Ad and slot of each sample, for reports.
    pub places: Vec<(u64, u32)>,
    pub counts: JoinCounts,
}

/// Rows between two calls of what [`join_watched`] is given: some milliseconds.
const READ_EVERY: u64 = 4096;

/// Which of a table's exposures are wanted: those whose row number leaves `part` when divided by `parts`.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    pub part: u64,
    pub parts: u64,
}

impl Share {
    pub const ALL: Self = Self { part: 0, parts: 1 };
}

/// Joins the exposures of log directory `dir` to its requests.
///
/// # Errors
/// A log or table that cannot be used, more bad rows than `options` allow, requests without the user where a field needs one, no exposure that can
/// be used.
pub fn join(dir: &Path, options: CompileOptions, fields: &Fields, share: Share) -> Result<Joined, JoinError> {
    join_watched(dir, options, fields, share, |_| ())
}

/// As [`join`], for a process whose heartbeat is watched: calls `read` now and then with the number of rows read since.
///
/// # Errors
/// As [`join`].
pub fn join_watched(
    dir: &Path,
    options: CompileOptions,
    fields: &Fields,
    share: Share,
    mut read: impl FnMut(u64),
) -> Result<Joined, JoinError> {
    let log = log::open(dir, options)?;
    if fields.need_user() && log.requests().iter().all(|r| r.user().is_none()) {
        return Err(FieldError::NoUser { log: dir.display().to_string() }.into());
    }
    let path = table::find(dir, "joined_exposure")?.ok_or_else(|| JoinError::NoTable { dir: dir.to_owned() })?;
    let mut exposed = vec![false; log.requests().len()];
    let mut table = Table::open(&path, exposure::COLUMNS)?;
    let mut row = table.row();
    let mut joined =
        Joined { samples: vec![], ids: vec![], requests: vec![], places: vec![], counts: JoinCounts::default(), log };
    let (mut first, mut queue) = (None, Vec::new());
    let mut usable = 0;
    let Joined { log, samples, ids, requests, places, counts } = &mut joined;
    let index = RowIndex::whole(log);
    while table.read(&mut row)? {
        counts.rows += 1;
        if counts.rows.is_multiple_of(READ_EVERY) {
            read(READ_EVERY);
        }
        let exposure = match exposure::parse(&row) {
            Ok(exposure) => exposure,
            Err(bad) => {
                let text = || LogError::BadRow { path: table.here().to_owned(), line: row.place.line, bad }.to_string();
                first.get_or_insert_with(text);
                counts.bad += 1;
                continue;
            }
        };
        let Some(at) = index.find(exposure.request_id) else {
            counts.unknown_requests += 1;
            continue;
        };
        if std::mem::replace(&mut exposed[at], true) {
            counts.repeated += 1;
            continue;
        }
        let request = &log.requests().row(at);
        queue.clear();
        queue.extend(asked(log, request));
        let Some(shown) = queue.iter().find(|a| a.ad_id == exposure.ad_id && a.ad_type == exposure.ad_type) else {
            counts.not_in_queue += 1;
            continue;
        };
        let auction = shown.ad_type == AdType::Auction;
        counts.charged_contracts += u64::from(!auction && exposure.charge > 0.0);
        counts.charged_at_zero += u64::from(auction && shown.ecpm == 0.0 && exposure.charge > 0.0);
        usable += 1;
        if (counts.rows - 1) % share.parts != share.part {
            continue;
        }
        counts.samples += 1;
        samples.push(Sample {
            seen: Seen::of(request, shown, log.day().start_ms),
            auction,
            charged: exposure.charge as f32,
            clicked: exposure.click,
            weight: Sample::weight(exposure.propensity),
        });
        fields.ids(request, shown.ad_id, shown.ad_type, ids);
        requests.push(request.request_id);
        places.push((shown.ad_id, request.slot_id));
    }
    if counts.bad as f64 > options.max_bad_share * counts.rows as f64 {
        let (bad, rows, max, first) = (counts.bad, counts.rows, options.max_bad_share, first.unwrap_or_default());
        return Err(LogError::TooManyBadExposures { path, bad, rows, max, first }.into());
    }
    if usable == 0 {
        return Err(JoinError::Nothing { dir: dir.to_owned(), rows: counts.rows, first });
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_without_a_reason_have_none_of_it() {
        let counts = JoinCounts { rows: 5, samples: 4, bad: 1, ..JoinCounts::default() };
        let mut file = serde_json::to_value(counts).unwrap();
        let reasons: Vec<String> = file.as_object().unwrap().keys().cloned().collect();
        for reason in reasons.iter().filter(|reason| !["rows", "samples", "bad"].contains(&reason.as_str())) {
            file.as_object_mut().unwrap().remove(reason);
            assert_eq!(serde_json::from_value::<JoinCounts>(file.clone()).unwrap(), counts, "without {reason}");
        }
    }
}
