//! Small random worlds, and a reader of log directories that shares no code with the program: it parses the text
//! itself, has its own rule of what may be shown and its own J. Whatever replay claims is held against it.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use admix::env::{DayModel, Vocabulary};
use admix::log::schema::{AdType, ControlRow, DAY_MS, DayFile, QueueEntry, TrackRow};
use admix::log::targeting::Targeting;
use admix::log::{self, CompileOptions, CompiledLog, write};
use admix::plan::{Plan, Tuned};
use proptest::collection::{SizeRange, vec};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::RngSeed;
use tempfile::TempDir;

use super::logs;

/// 2026-03-10, 00:00 UTC.
pub const MIDNIGHT: u64 = 1_773_100_800_000;

/// `n` cases of a fixed seed; `PROPTEST_CASES` and `PROPTEST_RNG_SEED` ask for others.
pub fn cases(n: u32) -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = n;
    }
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = RngSeed::Fixed(20_260_310);
    }
    config
}

/// A contract of the whole day that every request may show, and whose clicks are worth nothing.
pub fn plain_contract(k: usize, required: u64, penalty: f64) -> ControlRow {
    ControlRow {
        ad_id: contract_id(k),
        required,
        cap: required,
        delivered0: 0,
        start_ms: MIDNIGHT,
        end_ms: MIDNIGHT + DAY_MS,
        targeting: Targeting::default(),
        theta: None,
        rate: 1.0,
        penalty,
        click_value: 0.0,
        pctr: None,
    }
}

/// A day to be written as a log directory.
#[derive(Debug, Clone)]
pub struct World {
    pub utc_offset_minutes: i32,
    pub rows: Vec<TrackRow>,
    pub contracts: Vec<ControlRow>,
}

impl World {
    /// The local midnight.
    pub fn start_ms(&self) -> u64 {
        MIDNIGHT.checked_add_signed(-60_000 * i64::from(self.utc_offset_minutes)).unwrap()
    }

    pub fn write(&self, dir: &Path) {
        let day = DayFile { date: "2026-03-10".into(), utc_offset_minutes: self.utc_offset_minutes };
        write::day(dir, &day).unwrap();
        let whole = (self.start_ms(), self.start_ms() + DAY_MS);
        write::control(&dir.join("control.tsv"), &self.contracts, whole).unwrap();
        logs::track_log(dir, &self.rows);
    }

    /// Writes, compiles and plans the day; the plan is made from the day itself.
    pub fn load(&self) -> Loaded {
        let dir = tempfile::tempdir().unwrap();
        self.write(dir.path());
        let log = open(dir.path());
        let mut plan = Plan::from_days(&[&log], 0).unwrap();
        plan.tuned = Some(Tuned::default());
        let vocabulary = Arc::new(Vocabulary::of_days(&[&log], true));
        let day = DayModel::with_forecast(log, &plan.forecast, &plan, vocabulary);
        Loaded { plain: PlainLog::read(dir.path()), dir, day, plan }
    }
}

/// A world on disk, as the program sees it and as the plain reader does.
pub struct Loaded {
    pub dir: TempDir,
    pub day: DayModel,
    pub plan: Plan,
    pub plain: PlainLog,
}

/// The compiled log of a directory under the default options.
pub fn open(dir: &Path) -> CompiledLog {
    log::open(dir, CompileOptions::default()).unwrap()
}

/// How large a world is.
#[derive(Debug, Clone)]
pub struct Size {
    pub requests: SizeRange,
    pub contracts: std::ops::RangeInclusive<usize>,
    /// The most impressions that a contract requires.
    pub required: u64,
}

/// Worlds of 10 to 200 requests and up to 6 contracts, with every twist of the input contract.
pub fn world() -> impl Strategy<Value = World> {
    sized(Size { requests: (10..=200).into(), contracts: 0..=6, required: 30 })
}

pub fn sized(size: Size) -> impl Strategy<Value = World> {
    let Size { requests, contracts, required } = size;
    (contracts, select(vec![0, 480, -300])).prop_flat_map(move |(n, utc_offset_minutes)| {
        let terms: Vec<_> = (0..n).map(|k| contract(k, required)).collect();
        (terms, rows(n, requests.clone())).prop_map(move |(terms, rows)| {
            let mut world = World { utc_offset_minutes, rows, contracts: terms };
            let start = world.start_ms();
            for c in &mut world.contracts {
                (c.start_ms, c.end_ms) = (start + c.start_ms - DAY_MS, start + c.end_ms - DAY_MS);
            }
            for r in &mut world.rows {
                r.ts_ms += start;
            }
            world
        })
    })
}

/// Contracts' ids lie between those of auction ads, so that either side can have the lower id.
pub fn contract_id(k: usize) -> u64 {
    10 * k as u64 + 5
}

/// A contract whose flight counts from the midnight of the day before.
fn contract(k: usize, most: u64) -> impl Strategy<Value = ControlRow> {
    let flight = prop_oneof![
        3 => Just((DAY_MS, 2 * DAY_MS)),
        3 => (DAY_MS..2 * DAY_MS, 1..DAY_MS).prop_map(|(at, length)| (at, at + length)),
        // Ends, and starts, where the day does: no overlap at all.
        1 => (0..DAY_MS).prop_map(|at| (at, DAY_MS)),
        1 => (1..DAY_MS).prop_map(|length| (2 * DAY_MS, 2 * DAY_MS + length)),
    ];
    let cap = prop_oneof![2 => Just(0), 1 => 0..=most];
    let before = prop_oneof![3 => Just(0.0), 1 => 0.0..1.0, 1 => Just(1.0)];
    let money = |top: f64| prop_oneof![1 => Just(0.0), 2 => (1..8u32).prop_map(|v| f64::from(v) * 0.25), 2 => 0.0..top];
    let list = |top: u32| prop_oneof![3 => Just(vec![]), 1 => vec(0..top, 1..3)];
    (
        (1..=most, cap, before),
        flight,
        (list(4), list(3), list(4), list(3)),
        prop_oneof![3 => Just(1.0), 1 => 0.0..1.0, 1 => Just(0.0), 1 => Just(0.5)],
        (money(5.0), money(40.0)),
        (prop::option::of(0.0..=1.0), prop::option::of(0.0..0.2)),
    )
        .prop_map(
            move |(
                (required, slack, before),
                (start_ms, end_ms),
                lists,
                rate,
                (penalty, click_value),
                (theta, pctr),
            )| {
                let cap = required + slack;
                let (region, gender, age, slot) = lists;
                ControlRow {
                    ad_id: contract_id(k),
                    required,
                    cap,
                    delivered0: (cap as f64 * before) as u64,
                    start_ms,
                    end_ms,
                    targeting: Targeting { region, gender, age, slot },
                    theta,
                    rate,
                    penalty,
                    click_value,
                    pctr,
                }
            },
        )
}

/// Requests with their times counted from midnight, in no order.
pub fn rows(contracts: usize, requests: SizeRange) -> impl Strategy<Value = Vec<TrackRow>> {
    vec(row(contracts), requests).prop_map(|mut rows| {
        for (i, row) in rows.iter_mut().enumerate() {
            row.request_id = 1000 + 3 * i as u64;
        }
        rows
    })
}

fn row(contracts: usize) -> impl Strategy<Value = TrackRow> {
    let auctions = (0..6).flat_map(|k| [10 * k + 1, 10 * k + 8]).map(|id| (id, AdType::Auction));
    let ads: Vec<_> = (0..contracts).map(|k| (contract_id(k), AdType::Contract)).chain(auctions).collect();
    let queue =
        subsequence(ads, 1..=8).prop_shuffle().prop_flat_map(|ads| ads.into_iter().map(entry).collect::<Vec<_>>());
    let time = prop_oneof![3 => 0..DAY_MS, 1 => (0..24u64).prop_map(|hour| hour * 3_600_000)];
    (time, 0..3u32, 0..4u32, 0..3u8, 0..4u8, queue).prop_map(|(ts_ms, slot_id, region, gender, age, queue)| TrackRow {
        request_id: 0,
        ts_ms,
        slot_id,
        region,
        gender,
        age,
        user_id: None,
        queue,
    })
}

fn entry((ad_id, ad_type): (u64, AdType)) -> impl Strategy<Value = QueueEntry> {
    // Half of the prices lie on a grid on which scores, boosts included, are exact: equal scores are common.
    let ecpm = prop_oneof![1 => (0..8u32).prop_map(|v| f64::from(v) * 250.0), 1 => 0.0..4000.0];
    let pctr = prop_oneof![1 => Just(0.0), 3 => 0.0..0.1, 1 => 0.0..=1.0];
    let filter = prop_oneof![6 => Just(0), 1 => Just(1), 1 => any::<u64>()];
    let boost = prop_oneof![6 => Just(1.0), 1 => Just(0.5), 1 => Just(2.0), 1 => Just(0.125)];
    (ecpm, pctr, filter, boost).prop_map(move |(ecpm, pctr, filter, boost)| QueueEntry {
        ad_id,
        ad_type,
        ecpm,
        pctr,
        filter,
        boost,
    })
}

/// An entry of a queue, as its text says.
#[derive(Debug, Clone, PartialEq)]
pub struct PlainEntry {
    pub ad: u64,
    pub kind: char,
    pub ecpm: f64,
    pub pctr: f64,
    pub filter: u64,
    pub boost: f64,
}

#[derive(Debug, Clone)]
pub struct PlainRequest {
    pub id: u64,
    pub ts: u64,
    /// By name, as targeting has them.
    attributes: HashMap<&'static str, u64>,
    pub queue: Vec<PlainEntry>,
}

#[derive(Debug, Clone)]
pub struct PlainContract {
    pub required: u64,
    pub cap: u64,
    pub delivered0: u64,
    flight: (u64, u64),
    targeting: Vec<(String, Vec<u64>)>,
    pub rate: f64,
    pub penalty: f64,
    pub click_value: f64,
    pctr: f64,
}

impl PlainContract {
    pub fn owed(&self) -> f64 {
        self.required as f64 - (self.delivered0 as f64).min(self.required as f64)
    }

    pub fn left(&self) -> f64 {
        self.cap as f64 - self.delivered0 as f64
    }
}

/// A log directory, read without the program.
#[derive(Debug, Clone)]
pub struct PlainLog {
    /// In the order of their times; rows of one time in the order of the file.
    pub requests: Vec<PlainRequest>,
    pub contracts: BTreeMap<u64, PlainContract>,
}

/// What decisions earned, by the plain reader's count.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    pub j: f64,
    pub auction_revenue: f64,
    pub click_worth: f64,
    pub missing: f64,
    pub owed: f64,
    pub contract_pctr: f64,
    pub contract_impressions: u64,
    pub auction_impressions: u64,
    pub unfilled: u64,
}

/// A decision: the request, and what was shown on it.
pub type Decision = (u64, Option<(u64, char)>);

/// Impressions shown so far, by contract.
pub type Delivered = BTreeMap<u64, u64>;

/// The text of a table of `dir`, whatever it is compressed with.
pub fn text_of(dir: &Path, name: &str) -> String {
    let mut text = String::new();
    let plain = dir.join(format!("{name}.tsv"));
    let (gz, zst) = (dir.join(format!("{name}.tsv.gz")), dir.join(format!("{name}.tsv.zst")));
    if plain.exists() {
        text = std::fs::read_to_string(plain).unwrap();
    } else if gz.exists() {
        flate2::read::MultiGzDecoder::new(std::fs::File::open(gz).unwrap()).read_to_string(&mut text).unwrap();
    } else {
        zstd::Decoder::new(std::fs::File::open(zst).unwrap()).unwrap().read_to_string(&mut text).unwrap();
    }
    text
}

/// The rows of a table as maps from column to cell.
pub fn table(text: &str) -> impl Iterator<Item = HashMap<&str, &str>> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split('\t').collect();
    lines.map(move |line| header.iter().copied().zip(line.split('\t')).collect())
}

fn number<T: std::str::FromStr>(cell: Option<&&str>) -> Option<T> {
    cell.filter(|c| !c.is_empty()).map(|c| c.parse().ok().unwrap_or_else(|| panic!("`{c}` is no number")))
}

/// Days from 1970-01-01 by counting them.
fn days_since_1970(date: &str) -> u64 {
    let part: Vec<u64> = date.split('-').map(|p| p.parse().unwrap()).collect();
    let leap = |year: u64| u64::from(year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)));
    let months = [31, 28 + leap(part[0]), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    (1970..part[0]).map(|y| 365 + leap(y)).sum::<u64>() + months[..part[1] as usize - 1].iter().sum::<u64>() + part[2]
        - 1
}

fn midnight(dir: &Path, rows: &[PlainRequest]) -> u64 {
    let Ok(text) = std::fs::read_to_string(dir.join("day.toml")) else {
        return rows[0].ts - rows[0].ts % DAY_MS;
    };
    let value =
        |key: &str| text.lines().find_map(|l| l.strip_prefix(key)).map(|v| v.trim_matches([' ', '=', '"']).to_owned());
    let offset: i64 = value("utc_offset_minutes").map_or(0, |v| v.parse().unwrap());
    let utc = days_since_1970(&value("date").unwrap()) * DAY_MS;
    utc.checked_add_signed(-offset * 60_000).unwrap()
}

/// The draw of the formats: three rounds of SplitMix64's finaliser.
fn hash64(values: [u64; 3]) -> u64 {
    values.iter().fold(0, |state, value| {
        let x = (state ^ value).wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    })
}

impl PlainLog {
    pub fn read(dir: &Path) -> Self {
        let text = text_of(dir, "track_log");
        let mut requests: Vec<PlainRequest> = table(&text)
            .map(|row| PlainRequest {
                id: number(row.get("request_id")).unwrap(),
                ts: number(row.get("ts_ms")).unwrap(),
                attributes: [("slot", "slot_id"), ("region", "region"), ("gender", "gender"), ("age", "age")]
                    .map(|(name, column)| (name, number(row.get(column)).unwrap()))
                    .into(),
                queue: row["queue"].split(';').map(Self::entry).collect(),
            })
            .collect();
        let midnight = midnight(dir, &requests);
        requests.sort_by_key(|r| r.ts);
        let contracts = table(&text_of(dir, "control"))
            .map(|row| {
                let required = number(row.get("required")).unwrap();
                let time = |column: &str, default: u64| match number(row.get(column)) {
                    None => midnight + default,
                    Some(offset) if offset < DAY_MS => midnight + offset,
                    Some(time) => time,
                };
                let contract = PlainContract {
                    required,
                    cap: number(row.get("cap")).unwrap_or(required),
                    delivered0: number(row.get("delivered0")).unwrap_or(0),
                    flight: (time("start_ms", 0), time("end_ms", DAY_MS)),
                    targeting: row["targeting"].split('|').filter(|t| !t.is_empty()).map(Self::target).collect(),
                    rate: number(row.get("rate")).unwrap_or(1.0),
                    penalty: number(row.get("penalty")).unwrap(),
                    click_value: number(row.get("click_value")).unwrap(),
                    pctr: number(row.get("pctr")).unwrap_or(0.0),
                };
                (number(row.get("ad_id")).unwrap(), contract)
            })
            .collect();
        Self { requests, contracts }
    }

    fn entry(text: &str) -> PlainEntry {
        let cells: Vec<&str> = text.split(',').collect();
        PlainEntry {
            ad: cells[0].parse().unwrap(),
            kind: cells[1].parse().unwrap(),
            ecpm: cells[2].parse().unwrap(),
            pctr: cells[3].parse().unwrap(),
            filter: cells[4].parse().unwrap(),
            boost: number(cells.get(5)).unwrap_or(1.0),
        }
    }

    fn target(text: &str) -> (String, Vec<u64>) {
        let (name, values) = text.split_once(':').unwrap();
        (name.to_owned(), values.split(',').map(|v| v.parse().unwrap()).collect())
    }

    /// Adds to each queue the contracts in flight and targeted that it lacks, with their fallback pctr.
    pub fn complete_queues(&mut self) {
        for r in &mut self.requests {
            for (&ad, c) in &self.contracts {
                if r.queue.iter().all(|e| e.ad != ad) && wanted(c, r) {
                    let ecpm = c.click_value * c.pctr * 1000.0;
                    r.queue.push(PlainEntry { ad, kind: 'C', ecpm, pctr: c.pctr, filter: 0, boost: 1.0 });
                }
            }
        }
    }

    /// Whether a contract may be shown on a request, but for its cap.
    pub fn may_serve(&self, ad: u64, request: &PlainRequest, rate_seed: u64) -> bool {
        self.contracts
            .get(&ad)
            .is_some_and(|c| wanted(c, request) && hash64([rate_seed, request.id, ad]) as f64 / 2f64.powi(64) < c.rate)
    }

    /// The entries of a request that may be shown when `room(contract)` says that its cap is not reached.
    pub fn showable<'a>(
        &'a self,
        request: &'a PlainRequest,
        rate_seed: u64,
        room: impl Fn(u64) -> bool + 'a,
    ) -> impl Iterator<Item = &'a PlainEntry> {
        request
            .queue
            .iter()
            .filter(move |e| e.filter == 0 && (e.kind == 'A' || self.may_serve(e.ad, request, rate_seed) && room(e.ad)))
    }

    /// Whether the cap leaves room for one more impression.
    pub fn room(&self, ad: u64, delivered: &Delivered) -> bool {
        let c = &self.contracts[&ad];
        c.delivered0 + delivered.get(&ad).unwrap_or(&0) < c.cap
    }

    /// `b_i`: the best auction worth that may be shown on a request.
    pub fn best(request: &PlainRequest) -> f64 {
        request.queue.iter().filter(|e| e.kind == 'A' && e.filter == 0).map(|e| e.ecpm / 1000.0).fold(0.0, f64::max)
    }

    /// `S`.
    pub fn stake(&self) -> f64 {
        self.contracts.values().map(|c| c.penalty * c.owed()).sum()
    }

    /// What stays owed after `delivered`, and what it costs.
    pub fn shortage(&self, delivered: &Delivered) -> (f64, f64) {
        self.contracts.iter().fold((0.0, 0.0), |(missing, penalty), (ad, c)| {
            let short = (c.owed() - *delivered.get(ad).unwrap_or(&0) as f64).max(0.0);
            (missing + short, penalty + c.penalty * short)
        })
    }

    /// Requests on which nothing may be shown whatever was decided before.
    pub fn unfillable(&self, rate_seed: u64) -> u64 {
        let nothing =
            |r: &&PlainRequest| self.showable(r, rate_seed, |ad| self.room(ad, &Delivered::new())).next().is_none();
        self.requests.iter().filter(nothing).count() as u64
    }

    /// Judges one decision for each request; an error says which one breaks which rule.
    pub fn judge(&self, rate_seed: u64, decisions: &[Decision]) -> Result<Verdict, String> {
        let by_request: HashMap<u64, _> = decisions.iter().copied().collect();
        if decisions.len() != self.requests.len() || by_request.len() != decisions.len() {
            return Err(format!("{} decisions on {} requests", decisions.len(), self.requests.len()));
        }
        let mut delivered = Delivered::new();
        for r in &self.requests {
            let decision = by_request.get(&r.id).ok_or_else(|| format!("request {}: no decision", r.id))?;
            let mut choices = self.showable(r, rate_seed, |ad| self.room(ad, &delivered));
            match *decision {
                None => {
                    if let Some(e) = choices.next() {
                        return Err(format!("request {}: unfilled though {} may be shown", r.id, e.ad));
                    }
                }
                Some((ad, kind)) => {
                    if !choices.any(|e| e.ad == ad && e.kind == kind) {
                        return Err(format!("request {}: {ad} {kind} may not be shown", r.id));
                    }
                    drop(choices);
                    if kind == 'C' {
                        *delivered.entry(ad).or_default() += 1;
                    }
                }
            }
        }
        Ok(self.earned(decisions))
    }

    /// What decisions earned, whether they keep the rules or not; the ads stand in their requests' queues.
    pub fn earned(&self, decisions: &[Decision]) -> Verdict {
        let by_request: HashMap<u64, _> = decisions.iter().copied().collect();
        let mut delivered = Delivered::new();
        let mut verdict =
            Verdict { owed: self.contracts.values().map(PlainContract::owed).sum(), ..Verdict::default() };
        for r in &self.requests {
            match by_request[&r.id] {
                None => verdict.unfilled += 1,
                Some((ad, kind)) => {
                    let e = r.queue.iter().find(|e| e.ad == ad && e.kind == kind).unwrap();
                    if kind == 'A' {
                        verdict.auction_impressions += 1;
                        verdict.auction_revenue += e.ecpm / 1000.0;
                    } else {
                        verdict.contract_impressions += 1;
                        verdict.contract_pctr += e.pctr;
                        verdict.click_worth += self.contracts[&ad].click_value * e.pctr;
                        *delivered.entry(ad).or_default() += 1;
                    }
                }
            }
        }
        let (missing, penalty) = self.shortage(&delivered);
        verdict.missing = missing;
        verdict.j = verdict.auction_revenue + verdict.click_worth - penalty;
        verdict
    }
}

/// In flight and targeted.
fn wanted(c: &PlainContract, request: &PlainRequest) -> bool {
    c.flight.0 <= request.ts
        && request.ts < c.flight.1
        && c.targeting.iter().all(|(name, values)| values.contains(&request.attributes[name.as_str()]))
}

/// Equal but for rounding.
pub fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
}
