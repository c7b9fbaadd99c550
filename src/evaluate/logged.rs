//! The ads that the live system showed on a day, evaluated like a policy.
//!
//! Impressions come from `joined_exposure`, joined to the log by request; J is computed from the log's predicted
//! values, not from actual charges and clicks. The live system drew its own rates: if a contract's rate is below 1, it may
//! have shown an ad that the evaluation's seed would not have let in.

use std::path::Path;
use std::sync::Arc;

use crate::env::{DayModel, Incoming};
use crate::log::CompiledLog;
use crate::log::exposure::{self, ShownAds};
use crate::log::options::MEMORY;
use crate::log::schema::AdType;
use crate::log::table;
use crate::policy::{Shown, Totals};

/// Name of its row.
pub const NAME: &str = "logged";

/// The ad shown on each request of a log.
pub struct Logged {
    log: Arc<CompiledLog>,
    shown: ShownAds,
}

impl Logged {
    /// Reads and joins the exposures of log directory `dir`; `None` if it has none, or more than a share of them is bad, about which a warning is
    /// logged, as about exposures that do not join.
    ///
    /// # Errors
    /// If the table is unreadable.
    pub fn read(dir: &Path, log: &Arc<CompiledLog>, max_bad_share: f64) -> anyhow::Result<Option<Self>> {
        let Some(path) = table::find(dir, "joined_exposure")? else { return Ok(None) };
        let exposures = exposure::join(&path, log, MEMORY)?;
        let e = &exposures.report;
        if e.bad as f64 > max_bad_share * e.rows as f64 {
            let first = exposures.first_bad.as_deref().unwrap_or_default();
            tracing::warn!("left out: {NAME}: {} of {} exposures are bad; the first: {first}", e.bad, e.rows);
            return Ok(None);
        }
        if e.bad + e.unknown_requests + e.repeated + e.not_allowed + e.requests_without > 0 {
            tracing::warn!(
                "logged, {}: of {} exposures {} are bad, {} have no request in the log, {} repeat one, {} show what may not be \
                 shown; {} requests have no exposure",
                log.name(),
                e.rows,
                e.bad,
                e.unknown_requests,
                e.repeated,
                e.not_allowed,
                e.requests_without
            );
        }
        Ok(Some(Self { log: log.clone(), shown: exposures.shown }))
    }

    /// Sums the ads shown at the values of `day`, which has the same requests; `watch` is called with each impression.
    ///
    /// # Errors
    /// Any error of `watch`.
    pub fn replay(&self, day: &DayModel, watch: &mut dyn FnMut(Shown) -> anyhow::Result<()>) -> anyhow::Result<Totals> {
        let mut recount = Recount::new(day);
        for (row, (logged, request)) in self.log.requests().iter().zip(day.log.requests().iter()).enumerate() {
            let ad = self.shown.ad(&self.log, row, &logged);
            watch(recount.take(day, &day.incoming_of(row, &request), ad))?;
        }
        Ok(recount.finish(day))
    }
}

/// Sums of the ads shown on the requests of a day, at the values of that day.
pub struct Recount {
    totals: Totals,
    /// Impressions of each contract.
    delivered: Vec<f64>,
}

impl Recount {
    pub fn new(day: &DayModel) -> Self {
        Self { totals: Totals::default(), delivered: vec![0.0; day.contracts.len()] }
    }

    /// Counts the ad shown on the next request.
    pub fn take(&mut self, day: &DayModel, incoming: &Incoming, ad: Option<(u64, AdType)>) -> Shown {
        let Self { totals, delivered } = self;
        let Incoming { visit, entries, auctions } = incoming;
        let mut contract = None;
        let mut worth = 0.0;
        match ad {
            Some((ad_id, AdType::Auction)) => {
                worth = auctions.iter().find(|a| a.ad_id == ad_id).map_or(0.0, |a| a.worth());
                totals.auction_revenue += worth;
                totals.auction_impressions += 1;
            }
            Some((ad_id, AdType::Contract)) => {
                if let Some(e) = entries.iter().find(|e| day.contracts[e.contract as usize].ad_id == ad_id) {
                    let j = e.contract as usize;
                    contract = Some(j);
                    // Beyond the cap the platform gave it away: no policy of a replay may show it there.
                    let capped = delivered[j] >= day.contracts[j].left;
                    worth = if capped { 0.0 } else { day.contracts[j].click_value * e.pctr };
                    delivered[j] += 1.0;
                    totals.click_worth += worth;
                    totals.contract_pctr += e.pctr;
                    totals.contract_impressions += 1;
                }
            }
            None => totals.unfilled += 1,
        }
        Shown { request_id: visit.request_id, ad, contract, offset: visit.offset, worth, ranking: None }
    }

    /// Returns the sums after the last request.
    pub fn finish(self, day: &DayModel) -> Totals {
        let Self { mut totals, delivered } = self;
        for (c, delivered) in day.contracts.iter().zip(delivered) {
            let missing = (c.owed - delivered).max(0.0);
            totals.owed += c.owed;
            totals.missing += missing;
            totals.penalty += c.penalty * missing;
        }
        totals.j = totals.auction_revenue + totals.click_worth - totals.penalty;
        totals
    }
}
