//! What the live system really showed on a day, judged like a policy.
//!
//! Impressions come from `joined_exposure`, joined to the log by request; J is that of the formats under the log's predicted
//! values, not under what was charged and clicked. The live system drew its own rates: where a contract's rate is below 1, it may
//! have shown what the evaluation's seed would not have let in.

use std::path::Path;

use crate::env::DayModel;
use crate::log::exposure::{self, ExposureReport};
use crate::log::schema::AdType;
use crate::log::table;
use crate::policy::{Shown, Totals};

use super::compare::{BoundReport, Kind, PolicyReport};

/// The name of its row.
pub const NAME: &str = "logged";

/// The row of what was shown on the day of log directory `dir`, and how exposures and requests joined; `None` where the directory
/// has no `joined_exposure`. `watch` sees each impression.
///
/// # Errors
/// An unreadable table, or whatever `watch` returns.
pub fn logged(
    dir: &Path,
    day: &DayModel,
    bound: &BoundReport,
    watch: &mut dyn FnMut(&str, Shown) -> anyhow::Result<()>,
) -> anyhow::Result<Option<(PolicyReport, ExposureReport)>> {
    let Some(path) = table::find(dir, "joined_exposure")? else { return Ok(None) };
    let exposures = exposure::join(&path, &day.log)?;
    let totals = totals(day, &exposures.shown);
    for (request, &ad) in day.log.requests().iter().zip(&exposures.shown) {
        watch(NAME, Shown { request_id: request.request_id, ad })?;
    }
    Ok(Some((PolicyReport::new(NAME, Kind::Baseline, &totals, bound.share(totals.j)), exposures.report)))
}

fn totals(day: &DayModel, shown: &[Option<(u64, AdType)>]) -> Totals {
    let log = &day.log;
    let mut totals = Totals::default();
    let mut delivered = vec![0.0; day.contracts.len()];
    for (request, ad) in log.requests().iter().zip(shown) {
        match *ad {
            Some((ad_id, AdType::Auction)) => {
                let worth = log.auctions(request).iter().find(|a| a.ad_id == ad_id).map_or(0.0, |a| a.worth());
                totals.auction_revenue += worth;
                totals.auction_impressions += 1;
            }
            Some((ad_id, AdType::Contract)) => {
                let entries = log.entries(request);
                if let Some(e) = entries.iter().find(|e| day.contracts[e.contract as usize].ad_id == ad_id) {
                    let j = e.contract as usize;
                    delivered[j] += 1.0;
                    totals.click_worth += day.contracts[j].click_value * e.pctr;
                    totals.contract_pctr += e.pctr;
                    totals.contract_impressions += 1;
                }
            }
            None => totals.unfilled += 1,
        }
    }
    for (c, delivered) in day.contracts.iter().zip(delivered) {
        let missing = (c.owed - delivered).max(0.0);
        totals.owed += c.owed;
        totals.missing += missing;
        totals.penalty += c.penalty * missing;
    }
    totals.j = totals.auction_revenue + totals.click_worth - totals.penalty;
    totals
}
