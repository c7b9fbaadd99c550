//! Packs a block of requests for a compiled log; [`super`] has the layout.
//!
//! Every number comes back bit for bit: a way of storing a field is taken only if it was tried on all of the block's values.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::log::queue_buffer::QueueBuffer;

use super::{Auction, FieldMeta, HEAD, MANTISSAS, POWERS, Request, SLACK, kind, request};

/// Packs blocks, reusing its buffers.
#[derive(Debug, Default)]
pub(in crate::log) struct Packer {
    /// Stored numbers of the fields of a group, and what they are.
    fields: Vec<(FieldMeta, Vec<u64>)>,
    head: Vec<FieldMeta>,
    /// Dictionary of auction ads: number of each by id, and the ids.
    numbers: HashMap<u64, u32, RandomState>,
    ads: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl Packer {
    /// Packs a block into `bytes`; returns the number of ads in its dictionary.
    pub fn pack(&mut self, block: &QueueBuffer) -> u32 {
        let QueueBuffer { requests, entries, auctions } = block;
        self.head.clear();
        self.bytes.clear();
        self.bytes.resize(HEAD, 0);

        self.whole(requests.iter().map(|r| r.request_id));
        self.whole(requests.iter().map(|r| r.ts_ms));
        let first = |r: &Request| match block.auctions.get(r.auctions_at as usize) {
            Some(first) if r.auctions > 0 => first.worth(),
            _ => 0.0,
        };
        if requests.iter().all(|r| r.best.to_bits() == first(r).to_bits()) {
            self.fields.push((FieldMeta { kind: kind::OF_FIRST, ..FieldMeta::default() }, Vec::new()));
        } else {
            self.real(requests.iter().map(|r| r.best));
        }
        // A request without a user stores that of another, so that no zero widens the field.
        let lowest = requests.iter().filter_map(|r| r.user()).min().unwrap_or(0);
        self.whole(requests.iter().map(|r| r.user().unwrap_or(lowest)));
        self.whole(requests.iter().map(|r| u64::from(r.entries_at) + u64::from(r.entries)));
        self.whole(requests.iter().map(|r| u64::from(r.auctions_at) + u64::from(r.auctions)));
        self.whole(requests.iter().map(|r| u64::from(r.slot_id)));
        self.whole(requests.iter().map(|r| u64::from(r.region)));
        self.whole(requests.iter().map(|r| request::viewer(r.has_user, r.gender, r.age)));
        self.rows(requests.len());

        self.whole(entries.iter().map(|e| u64::from(e.contract)));
        self.real(entries.iter().map(|e| e.pctr));
        self.real(entries.iter().map(|e| e.ecpm));
        self.real(entries.iter().map(|e| e.boost));
        self.rows(entries.len());

        self.ads(auctions);
        self.real(auctions.iter().map(|a| a.ecpm));
        self.real(auctions.iter().map(|a| a.pctr));
        self.real(auctions.iter().map(|a| a.boost));
        self.rows(auctions.len());

        self.bytes.extend_from_slice(bytemuck::cast_slice(&self.ads));
        self.bytes.resize(self.bytes.len() + SLACK, 0);
        self.bytes[..HEAD].copy_from_slice(bytemuck::cast_slice(&self.head));
        self.ads.len() as u32
    }

    /// Adds a field of whole numbers.
    fn whole(&mut self, values: impl Iterator<Item = u64>) {
        self.numbers_of(kind::WHOLE, 0, values.collect());
    }

    fn numbers_of(&mut self, kind: u8, scale: u8, mut numbers: Vec<u64>) {
        let (base, width) = span(numbers.iter().copied());
        numbers.iter_mut().for_each(|n| *n -= base);
        self.fields.push((FieldMeta { base, width, kind, scale, zero: [0; 5] }, numbers));
    }

    /// Adds a field of numbers with a fraction, in the narrowest way that gives back their bits.
    fn real(&mut self, values: impl Iterator<Item = f64>) {
        let values: Vec<f64> = values.collect();
        let bits = || values.iter().map(|v| v.to_bits());
        let mut best = (span(bits()).1, kind::DOUBLE, 0, bits().collect::<Vec<_>>());
        let singles = values.iter().map(|&v| {
            let single = v as f32;
            (f64::from(single).to_bits() == v.to_bits()).then(|| u64::from(single.to_bits()))
        });
        if best.0 > 0
            && let Some(singles) = singles.collect::<Option<Vec<_>>>()
        {
            let (_, width) = span(singles.iter().copied());
            if width < best.0 {
                best = (width, kind::SINGLE, 0, singles);
            }
        }
        if best.0 > 0
            && let Some((scale, mantissas)) = decimals(&values)
        {
            let (_, width) = span(mantissas.iter().copied());
            if width < best.0 {
                best = (width, kind::DECIMAL, scale, mantissas);
            }
        }
        let (_, kind, scale, numbers) = best;
        self.numbers_of(kind, scale, numbers);
    }

    /// Adds the ids of auction ads, through a dictionary if this takes less room.
    fn ads(&mut self, auctions: &[Auction]) {
        self.ads.clear();
        let ids = || auctions.iter().map(|a| a.ad_id);
        let (_, width) = span(ids());
        if width > 2 {
            self.numbers.clear();
            let mut listed = Vec::with_capacity(auctions.len());
            for id in ids() {
                let next = self.ads.len() as u32;
                let number = *self.numbers.entry(id).or_insert(next);
                if number == next {
                    self.ads.push(id);
                }
                listed.push(u64::from(number));
            }
            let of_number = usize::from(span(listed.iter().copied()).1);
            if of_number * listed.len() + 8 * self.ads.len() < usize::from(width) * listed.len() {
                return self.numbers_of(kind::LISTED, 0, listed);
            }
            self.ads.clear();
        }
        self.whole(ids());
    }

    /// Writes the rows of the fields added since the last group.
    fn rows(&mut self, count: usize) {
        let stride: usize = self.fields.iter().map(|(meta, _)| usize::from(meta.width)).sum();
        let start = self.bytes.len();
        // A number is written with all of its eight bytes; the next one overwrites those that are not its own.
        self.bytes.resize(start + count * stride + SLACK, 0);
        let fields: Vec<(&[u64], usize)> =
            self.fields.iter().map(|(m, numbers)| (&**numbers, usize::from(m.width))).filter(|f| f.1 > 0).collect();
        let mut at = start;
        for i in 0..count {
            for (numbers, width) in &fields {
                self.bytes[at..at + 8].copy_from_slice(&numbers[i].to_le_bytes());
                at += width;
            }
        }
        self.bytes.truncate(start + count * stride);
        self.head.extend(self.fields.drain(..).map(|(meta, _)| meta));
    }
}

/// Returns the lowest of some numbers, and the bytes that the differences from it take.
fn span(numbers: impl Iterator<Item = u64>) -> (u64, u8) {
    let (lowest, highest) = numbers.fold((u64::MAX, 0), |(low, high), n| (low.min(n), high.max(n)));
    match highest.checked_sub(lowest) {
        Some(span) => (lowest, (64 - span.leading_zeros()).div_ceil(8) as u8),
        None => (0, 0),
    }
}

/// Returns the mantissa of a decimal that is this double, given the power of ten by which the mantissa is divided.
#[inline]
fn mantissa(value: f64, power: f64) -> Option<u64> {
    let near = value * power + 0.5;
    // A signed conversion is one instruction.
    let mantissa = (near < MANTISSAS as f64).then_some(near as i64 as u64)?;
    (mantissa < MANTISSAS && (mantissa as i64 as f64 / power).to_bits() == value.to_bits()).then_some(mantissa)
}

/// Returns the fewest digits with which all values are decimals, and their mantissas.
fn decimals(values: &[f64]) -> Option<(u8, Vec<u64>)> {
    let mut mantissas = Vec::with_capacity(values.len());
    let mut scale = 0;
    while let Some(&power) = POWERS.get(scale) {
        // A value that lacked digits is the first to be tried with more of them.
        let first = mantissas.len();
        if values.get(first).is_none_or(|&value| mantissa(value, power).is_some()) {
            mantissas.clear();
            mantissas.extend(values.iter().map_while(|&value| mantissa(value, power)));
            if mantissas.len() == values.len() {
                return Some((scale as u8, mantissas));
            }
            if mantissas.len() < first {
                // A large value has no mantissa at the scale that a small one needs.
                return None;
            }
        }
        scale += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use bytemuck::{Zeroable as _, bytes_of, cast_slice};
    use proptest::prelude::*;

    use crate::log::CompiledLog;
    use crate::log::Entries;
    use crate::log::compile::writer::LogWriter;
    use crate::log::compiled::{Contract, Tail};
    use crate::log::day::Day;
    use crate::log::draw::hash64;
    use crate::log::records::{BLOCK, ContractEntry};
    use crate::log::schema::ControlRow;
    use crate::log::targeting::Targeting;

    use super::*;

    type Row = (Request, Vec<ContractEntry>, Vec<Auction>);

    /// Writes rows and opens the log that they make.
    fn log_of(rows: &[Row], contracts: usize) -> (CompiledLog, u64) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut out = file.reopen().unwrap();
        let mut writer: LogWriter<&mut std::fs::File> = LogWriter::new(&mut out);
        writer.begin().unwrap();
        for (request, entries, auctions) in rows {
            writer.push(request, entries, auctions).unwrap();
        }
        let contract = Contract::before_the_day(&ControlRow {
            ad_id: 1,
            required: 1,
            cap: 1,
            delivered0: 0,
            start_ms: 0,
            end_ms: 1,
            targeting: Targeting::default(),
            theta: None,
            rate: 1.0,
            penalty: 1.0,
            click_value: 1.0,
            pctr: None,
        });
        let tail = Tail {
            name: "any".into(),
            day: Day::of_timestamp(0),
            contracts: vec![contract; contracts],
            counts: Default::default(),
            contracts_declared: false,
            content: None,
        };
        writer.finish(tail, 7).unwrap();
        let log = CompiledLog::open(file.path()).unwrap();
        (log, file.path().metadata().unwrap().len())
    }

    fn check(rows: &[Row], log: &CompiledLog) {
        assert_eq!(log.requests().len(), rows.len());
        for (i, (request, entries, auctions)) in rows.iter().enumerate() {
            let r = log.requests().row(i);
            let place =
                |r: &Request| Request { block: 0, entries_at: 0, auctions_at: 0, entries: 0, auctions: 0, ..*r };
            assert_eq!(bytes_of(&place(&r)), bytes_of(&place(request)), "row {i}");
            assert_eq!(cast_slice::<_, u8>(&log.entries(&r).to_vec()), cast_slice::<_, u8>(entries), "row {i}");
            assert_eq!(cast_slice::<_, u8>(&log.auctions(&r).to_vec()), cast_slice::<_, u8>(auctions), "row {i}");
            assert_eq!(log.requests().ts_ms(i), request.ts_ms);
            assert_eq!((log.entries(&r).len(), log.auctions(&r).len()), (entries.len(), auctions.len()));
            for most in [0, 1, auctions.len(), auctions.len() + 1] {
                let first = &auctions[..most.min(auctions.len())];
                assert_eq!(cast_slice::<_, u8>(&log.auctions(&r).truncated(most).to_vec()), cast_slice::<_, u8>(first));
                assert_eq!(
                    cast_slice::<_, u8>(&Entries::Plain(auctions).truncated(most).to_vec()),
                    cast_slice::<_, u8>(first)
                );
            }
        }
    }

    /// Numbers of one column, no higher than `most`: of one kind, or of any.
    fn reals(most: f64) -> BoxedStrategy<BoxedStrategy<f64>> {
        let decimals = (0u32..=9, 1u64..=1_000_000_000).prop_map(move |(scale, top)| {
            (0..=top).prop_map(move |m| (m as f64 / 10f64.powi(scale as i32)).min(most)).boxed()
        });
        let singles = Just((0.0f32..=1.0).prop_map(f64::from).boxed());
        let doubles = Just((0.0..=most).boxed());
        let bits = Just((0..=most.to_bits()).prop_map(f64::from_bits).boxed());
        let long = Just((0u64..=99_999_999_999_999_999).prop_map(move |m| (m as f64 / 1e17).min(most)).boxed());
        let edges = [0.0, -0.0, f64::MIN_POSITIVE, f64::from_bits(1), most, 0.1, 1e-22, 1e-23, 9_007_199_254_740_991.0];
        let edges = Just(proptest::sample::select(edges.map(|v| f64::min(v, most)).to_vec()).boxed());
        let constant = (0.0..=most).prop_map(|v| Just(v).boxed());
        prop_oneof![decimals, singles, doubles, bits, long, edges, constant].boxed()
    }

    fn wholes() -> BoxedStrategy<BoxedStrategy<u64>> {
        let near = any::<u64>().prop_map(|from| (from..=from.saturating_add(1000)).boxed());
        let listed =
            proptest::collection::vec(any::<u64>(), 1..9).prop_map(|ids| proptest::sample::select(ids).boxed());
        let edges = Just(proptest::sample::select(vec![0, 1, u64::MAX, u64::MAX - 1, 1 << 63]).boxed());
        prop_oneof![near, listed, Just(any::<u64>().boxed()), edges].boxed()
    }

    /// Any day of up to sixty requests.
    fn rows() -> impl Strategy<Value = Vec<Row>> {
        let columns = (wholes(), wholes(), wholes(), [reals(1.0), reals(f64::MAX), reals(10.0), reals(f64::MAX)]);
        let shape = (0usize..60, 0u16..=3, prop_oneof![Just(12usize), Just(512)], any::<bool>());
        (columns, shape).prop_flat_map(
            |((ids, users, ads, [pctr, ecpm, boost, best]), (n, contracts, longest, first))| {
                let entry = (0..u32::from(contracts.max(1)), pctr.clone(), ecpm.clone(), boost.clone());
                let entry = entry.prop_map(|(contract, pctr, ecpm, boost)| ContractEntry {
                    pctr,
                    ecpm,
                    boost,
                    contract,
                    padding: 0,
                });
                let entries = proptest::collection::vec(entry, 0..=if contracts == 0 { 0 } else { longest.min(20) });
                let auction = (ads, ecpm, pctr, boost);
                let auction = auction.prop_map(|(ad_id, ecpm, pctr, boost)| Auction { ad_id, ecpm, pctr, boost });
                let auctions = prop_oneof![
                    9 => proptest::collection::vec(auction.clone(), 0..=12),
                    1 => proptest::collection::vec(auction, longest),
                ];
                let viewer = (any::<u32>(), any::<u32>(), 0u8..=2, 0u8..=9, proptest::option::of(users));
                let request = (ids, 0u64..86_400_000, best, viewer, entries, auctions);
                let row = request.prop_map(
                    move |(id, ts_ms, best, (slot_id, region, gender, age, user), entries, auctions)| {
                        let worth = auctions.first().map_or(0.0, Auction::worth);
                        let best = if first { worth } else { best };
                        let (user_id, has_user) = (user.unwrap_or(0), u8::from(user.is_some()));
                        let request =
                            Request { request_id: id, ts_ms, best, user_id, slot_id, region, ..Request::zeroed() };
                        (Request { gender, age, has_user, ..request }, entries, auctions)
                    },
                );
                proptest::collection::vec(row, n).prop_map(|mut rows| {
                    rows.sort_by_key(|(r, ..)| r.ts_ms);
                    rows
                })
            },
        )
    }

    proptest! {
        #[test]
        fn any_rows_come_back_bit_for_bit(rows in rows()) {
            let (log, _) = log_of(&rows, 3);
            check(&rows, &log);
        }
    }

    #[test]
    fn blocks_of_a_long_day_are_packed_each_by_itself() {
        let row = |i: u64| {
            let request =
                Request { request_id: i * 7919, ts_ms: i, user_id: 5 + i % 9, has_user: 1, ..Request::zeroed() };
            let decimals = |n: u64| (i * 31 + n * 17) as f64 / if i < BLOCK as u64 { 100.0 } else { 1e7 };
            let auction =
                |n| Auction { ad_id: (1 << 40) + (i + n) % 50 * 1_000_000, ecpm: decimals(n), pctr: 0.5, boost: 1.0 };
            let auctions: Vec<Auction> = (0..i % 8).map(auction).collect();
            let entry =
                ContractEntry { pctr: decimals(1) / 1e9, ecpm: 0.0, boost: 1.0, contract: (i % 3) as u32, padding: 0 };
            (Request { best: 2.5, ..request }, vec![entry; (i % 4) as usize], auctions)
        };
        for count in [0, 1, BLOCK as u64 - 1, BLOCK as u64, BLOCK as u64 + 1, 3 * BLOCK as u64 - 7] {
            let rows: Vec<Row> = (0..count).map(row).collect();
            check(&rows, &log_of(&rows, 3).0);
        }
    }

    /// 35 bytes with records of fixed size.
    #[test]
    fn an_entry_of_a_usual_day_takes_a_third_of_its_record() {
        let row = |i: u64| {
            let mix = |n: u64| hash64(3, i, n);
            let request =
                Request { request_id: 1_000_000 + i, ts_ms: 20 * i, slot_id: (i % 8) as u32, ..Request::zeroed() };
            let auction = |n| {
                let (ecpm, pctr) = ((mix(n) % 900_000) as f64 / 100.0, (mix(n + 50) % 500_000) as f64 / 1e6);
                Auction { ad_id: hash64(4, 0, mix(n) % 2000), ecpm, pctr, boost: 1.0 }
            };
            let auctions: Vec<Auction> = (0..10).map(auction).collect();
            let entry = |n: u64| ContractEntry {
                pctr: (mix(n + 90) % 500_000) as f64 / 1e6,
                ecpm: (mix(n + 99) % 900_000) as f64 / 100.0,
                boost: 1.0,
                contract: n as u32,
                padding: 0,
            };
            let best = auctions[0].worth();
            (Request { best, user_id: mix(7), has_user: 1, ..request }, (0..6).map(entry).collect(), auctions)
        };
        let rows: Vec<Row> = (0..8192).map(row).collect();
        let (log, bytes) = log_of(&rows, 6);
        check(&rows, &log);
        assert!(bytes <= 12 * 16 * 8192, "{} bytes an entry", bytes as f64 / 16.0 / 8192.0);
    }

    #[test]
    fn a_decimal_is_its_double() {
        assert_eq!(decimals(&[0.5, 12.25, 3.0]), Some((2, vec![50, 1225, 300])));
        assert_eq!(decimals(&[1e-22]), Some((22, vec![1])));
        for none in [1e-23, -0.0, f64::MAX, std::f64::consts::PI * 1e-12, f64::from_bits(1)] {
            assert_eq!(decimals(&[none]), None, "{none}");
        }
        assert_eq!(decimals(&[1e15, 0.001]), None, "no scale has room for both");
    }
}
