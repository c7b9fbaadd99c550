//! A pass so far: its counts, and which rows it keeps.

use std::path::Path;

use super::ids::{Ids, Repeated};
use super::source::PartNames;
use super::workers::Parsed;
use crate::log::error::{BadValue, Result};
use crate::log::parts::PassState;
use crate::log::quarantine::Quarantine;

/// State of a pass.
pub struct Pass {
    pub quarantine: Quarantine,
    pub names: PartNames,
    /// Ids of the rows that were parsed; `None` where repeated ones are known.
    pub ids: Option<Ids>,
    /// Lumps that are whole, and the bytes of the table up to now.
    pub lumps: u64,
    pub read: u64,
    /// Rows that were parsed, before the checks that need the whole table.
    pub seen: u64,
    pub good: u64,
    /// Latest time of a row, Unix milliseconds.
    pub latest: u64,
}

impl Pass {
    /// Begins a pass over the log directory `dir`; `ids` collects request ids, unless repeated ones are known.
    pub fn begin(dir: &Path, ids: Option<Ids>) -> Self {
        let (quarantine, names) = (Quarantine::begin(dir), PartNames::default());
        Self { quarantine, names, ids, lumps: 0, read: 0, seen: 0, good: 0, latest: 0 }
    }

    /// Returns what a savepoint needs, with the ids since the last one; `None` if the list of bad rows cannot be written.
    pub fn so_far(&mut self) -> Option<(PassState, Vec<u64>)> {
        let set_aside = self.quarantine.set_aside_so_far()?;
        let &mut Self { lumps, read, seen, good, latest, .. } = self;
        let (fresh, ids) = self.ids.as_mut().map(Ids::take_fresh).unwrap_or_default();
        Some((PassState { lumps, read, seen, good, latest, ids, set_aside }, fresh))
    }

    /// Judges the rows of a batch in order; `keep` gets a flag for each gathered row.
    pub fn take<G>(&mut self, batch: &Parsed<G>, known: Option<&Repeated>, keep: &mut Vec<bool>) -> Result<()> {
        keep.clear();
        self.read += batch.bytes;
        self.quarantine.counts.rows += batch.rows;
        let mut bad = batch.bad.iter().peekable();
        for i in 0..=batch.requests.len() {
            while let Some(b) = bad.next_if(|b| b.before == i && !b.parsed) {
                self.quarantine.set_aside(self.names.of(batch.part), b.line, &b.why);
            }
            let Some(r) = batch.requests.get(i) else { break };
            let unknown = bad.next_if(|b| b.before == i && b.parsed);
            let number = self.seen;
            self.seen += 1;
            if known.is_some_and(|known| known.holds(number)) {
                let why =
                    BadValue::new("request_id", &r.id.to_string(), "duplicate_request", "stands twice in the file");
                self.quarantine.set_aside(self.names.of(batch.part), r.line, &why);
                if unknown.is_none() {
                    keep.push(false);
                }
                continue;
            }
            if let Some(ids) = &mut self.ids {
                ids.push(r.id, number)?;
            }
            self.quarantine.counts.out_of_order += u64::from(r.ts_ms < self.latest);
            self.latest = self.latest.max(r.ts_ms);
            match unknown {
                Some(b) => self.quarantine.set_aside(self.names.of(batch.part), b.line, &b.why),
                None => {
                    keep.push(true);
                    self.good += 1;
                }
            }
        }
        Ok(())
    }
}
