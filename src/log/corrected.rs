//! Days at corrected values instead of the logged ones: the worth of an impression by a value model, or its true worth.
//!
//! A corrected day is a separate compiled log beside the logged one. It has the same requests and the same entries in the same
//! rows, with other eCPMs and click probabilities and with the auction ads in the resulting order. Code that may see a day only
//! at corrected values opens that file instead, so everything above this folder reads values in one way only.

use std::collections::HashMap;
use std::path::Path;

use twox_hash::XxHash3_128;

use super::block::Entries;
use super::compile::output::{Output, write_or_hold};
use super::compile::writer::LogWriter;
use super::compiled::{CompiledLog, Contract, Tail};
use super::error::{BadValue, LogError, Result};
use super::inputs::hash_table;
use super::keep;
use super::options::MEMORY;
use super::queue::{self, QueueRules, Showable};
use super::records::{Auction, ContractEntry, Request};
use super::schema::{AdType, MAX_ECPM, TrackRow};
use super::table::{self, Column, Row, Table, required};

/// An entry of a request whose values are to be corrected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Asked {
    pub ad_id: u64,
    pub ad_type: AdType,
    /// Logged values: eCPM in minor units per 1,000 impressions, and click probability.
    pub ecpm: f64,
    pub pctr: f64,
    /// Number of entries of the request that may be shown and have a higher logged eCPM, and number of all entries that may be
    /// shown.
    pub position: u32,
    pub length: u32,
}

/// Returns the entries of a request that may be shown: auction ads in their order, then contracts in theirs.
pub fn asked<'a>(log: &'a CompiledLog, request: &'a Request) -> impl Iterator<Item = Asked> + 'a {
    asked_of(log.auctions(request), log.entries(request), |contract| log.contracts()[contract as usize].ad_id)
}

fn asked_of<'a>(
    auctions: Entries<'a, Auction>,
    entries: Entries<'a, ContractEntry>,
    ad_of: impl Fn(u32) -> u64 + 'a,
) -> impl Iterator<Item = Asked> + 'a {
    let length = (auctions.len() + entries.len()) as u32;
    let ecpms = move || auctions.iter().map(|a| a.ecpm).chain(entries.iter().map(|e| e.ecpm));
    let position = move |ecpm: f64| ecpms().filter(|&other| other > ecpm).count() as u32;
    let of_auction = move |a: Auction| Asked {
        ad_id: a.ad_id,
        ad_type: AdType::Auction,
        ecpm: a.ecpm,
        pctr: a.pctr,
        position: position(a.ecpm),
        length,
    };
    let of_entry = move |e: ContractEntry| Asked {
        ad_id: ad_of(e.contract),
        ad_type: AdType::Contract,
        ecpm: e.ecpm,
        pctr: e.pctr,
        position: position(e.ecpm),
        length,
    };
    auctions.iter().map(of_auction).chain(entries.iter().map(of_entry))
}

/// Callback that corrects one request: it gets the request and its entries and replaces each pair of eCPM and click
/// probability.
pub type Correct<'a> = dyn FnMut(&Request, &[Asked], &mut [(f64, f64)]) -> Result<()> + 'a;

/// Corrects one request after another, reusing its buffers.
#[derive(Default)]
pub struct Correction {
    queue: Vec<Asked>,
    values: Vec<(f64, f64)>,
}

impl Correction {
    /// Replaces the values of the entries of a request and sorts the auction ads by them. Returns the highest worth among the
    /// auction ads. `ad_of` maps a contract to its ad id.
    ///
    /// # Errors
    /// Any error of `correct`, or a corrected value out of range.
    fn apply(
        &mut self,
        request: &Request,
        auctions: &mut [Auction],
        entries: &mut [ContractEntry],
        ad_of: impl Fn(u32) -> u64,
        correct: &mut Correct,
    ) -> std::result::Result<f64, CorrectionError> {
        self.queue.clear();
        self.queue.extend(asked_of(Entries::Plain(auctions), Entries::Plain(entries), ad_of));
        self.values.clear();
        self.values.extend(self.queue.iter().map(|a| (a.ecpm, a.pctr)));
        correct(request, &self.queue, &mut self.values)?;
        for (a, (ecpm, pctr)) in self.queue.iter().zip(&self.values) {
            if !(0.0..=f64::MAX).contains(ecpm) || !(0.0..=1.0).contains(pctr) {
                return Err(CorrectionError::NoValue(format!(
                    "request {}, ad {}: corrected to an eCPM of {ecpm} and a click probability of {pctr}",
                    request.request_id, a.ad_id
                )));
            }
        }
        for (a, &(ecpm, pctr)) in auctions.iter_mut().zip(&self.values) {
            (a.ecpm, a.pctr) = (ecpm.min(MAX_ECPM), pctr);
        }
        for (e, &(_, pctr)) in entries.iter_mut().zip(&self.values[auctions.len()..]) {
            e.pctr = pctr;
        }
        queue::sort_by_score(auctions);
        Ok(auctions.iter().map(Auction::worth).fold(0.0, f64::max))
    }

    /// Corrects the entries of a request from a stream. A request whose corrected values are out of range keeps its own values.
    pub fn correct(
        &mut self,
        row: &TrackRow,
        rules: &QueueRules,
        showable: &mut Showable,
        mut correct: impl FnMut(&Request, &[Asked], &mut [(f64, f64)]),
    ) {
        let Showable { entries, auctions, best, .. } = showable;
        let ad_of = |contract: u32| rules.contracts()[contract as usize].ad_id;
        let corrected = self.apply(&Request::of_row(row), auctions, entries, ad_of, &mut |request, queue, values| {
            correct(request, queue, values);
            Ok(())
        });
        match corrected {
            Ok(corrected) => *best = corrected,
            Err(e) => tracing::warn!("{e}; it is decided at its own values"),
        }
    }
}

/// Why a request has no corrected values.
#[derive(Debug, thiserror::Error)]
enum CorrectionError {
    #[error("{0}")]
    NoValue(String),
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Opens the day of directory `dir` at corrected values; makes the file first where there is none for this log and `key`. A
/// contract's eCPM stays as logged because nobody pays it.
///
/// # Errors
/// Any error of `correct`, or a corrected value out of range.
pub fn open(dir: &Path, log: &CompiledLog, key: u128, correct: &mut Correct) -> Result<CompiledLog> {
    let mut hasher = XxHash3_128::new();
    hasher.write(&log.inputs().to_le_bytes());
    hasher.write(&key.to_le_bytes());
    let inputs = hasher.finish_128();
    let path = keep::folder(dir).map(|folder| folder.join(format!("values-{:016x}.log", key as u64)));
    if let Some(path) = path.as_ref().filter(|path| path.is_file()) {
        match CompiledLog::open(path) {
            Ok(found) if found.inputs() == inputs => return Ok(found),
            Ok(_) => tracing::info!("{}: inputs changed, correcting values again", dir.display()),
            Err(e) => tracing::warn!("{e}; correcting values again"),
        }
    }
    write_or_hold(path, dir, MEMORY, &mut |to| write(dir, log, inputs, correct, to))
}

fn write(dir: &Path, log: &CompiledLog, inputs: u128, correct: &mut Correct, to: &mut dyn Output) -> Result<()> {
    let failed = |cause| LogError::NotKept { dir: dir.to_owned(), cause };
    let mut writer = LogWriter::new(to);
    writer.begin().map_err(failed)?;
    let mut correction = Correction::default();
    let (mut entries, mut auctions) = (Vec::new(), Vec::new());
    let mut pctr_sum = vec![0.0; log.contracts().len()];
    for request in log.requests() {
        crate::cancel::point();
        auctions.clear();
        log.auctions(&request).append_to(&mut auctions);
        entries.clear();
        log.entries(&request).append_to(&mut entries);
        let ad_of = |contract: u32| log.contracts()[contract as usize].ad_id;
        let best = correction.apply(&request, &mut auctions, &mut entries, ad_of, correct).map_err(|e| match e {
            CorrectionError::Log(e) => e,
            CorrectionError::NoValue(reason) => LogError::Format { path: log.path().to_owned(), reason },
        })?;
        for e in &entries {
            pctr_sum[e.contract as usize] += e.pctr;
        }
        writer.push(&Request { best, ..request }, &entries, &auctions).map_err(failed)?;
    }
    let contracts = log.contracts().iter().zip(pctr_sum).map(|(c, sum)| Contract {
        mean_pctr: if c.present > 0 { sum / c.present as f64 } else { c.mean_pctr },
        ..c.clone()
    });
    let tail = Tail {
        name: log.name().to_owned(),
        day: log.day().clone(),
        contracts: contracts.collect(),
        counts: log.counts().clone(),
        contracts_declared: log.contracts_declared(),
        content: log.content(),
    };
    writer.finish(tail, inputs).map_err(failed)
}

pub(super) const COLUMNS: &[Column] =
    &[required("request_id"), required("ad_id"), required("charge"), required("pctr")];

type TableRow = ((u64, u64), (f64, f64));

fn parse(row: &Row) -> std::result::Result<TableRow, BadValue> {
    row.check_shape()?;
    let id = |i| row.integer(i)?.ok_or_else(|| row.empty(i));
    let value = |i, most| row.number(i, 0.0, most)?.ok_or_else(|| row.empty(i));
    Ok(((id(0)?, id(1)?), (value(2, f64::MAX)?, value(3, 1.0)?)))
}

/// Opens a day at the values of a table in its directory: `truth.tsv`, which synthetic worlds have.
///
/// # Errors
/// A missing table, a bad row, or an entry without a row in the table.
pub fn open_table(dir: &Path, log: &CompiledLog, name: &'static str) -> Result<CompiledLog> {
    let path = table::find(dir, name)?.ok_or_else(|| LogError::MissingFile {
        dir: dir.to_owned(),
        name,
        hint: " to be judged or told at the truth, and only the days of a synthetic world with errors have it; leave out --truth and --told truth".into(),
    })?;
    let mut hasher = XxHash3_128::new();
    hash_table(&mut hasher, &path)?;
    let mut values: Option<HashMap<(u64, u64), (f64, f64)>> = None;
    open(dir, log, hasher.finish_128(), &mut |request, queue, out| {
        let values = match &mut values {
            Some(values) => values,
            None => values.insert(read_table(&path)?),
        };
        for (asked, out) in queue.iter().zip(out) {
            let Some(&(charge, pctr)) = values.get(&(request.request_id, asked.ad_id)) else {
                let reason = format!("no row for request {}, ad {}", request.request_id, asked.ad_id);
                return Err(LogError::Format { path: path.clone(), reason });
            };
            *out = (1000.0 * charge, pctr);
        }
        Ok(())
    })
}

fn read_table(path: &Path) -> Result<HashMap<(u64, u64), (f64, f64)>> {
    let mut table = Table::open(path, COLUMNS)?;
    table.warn_unknown(0);
    let mut row = table.row();
    let mut values = HashMap::new();
    while table.read(&mut row)? {
        let (key, value) =
            parse(&row).map_err(|bad| LogError::BadRow { path: path.to_owned(), line: row.place.line, bad })?;
        values.insert(key, value);
    }
    Ok(values)
}
