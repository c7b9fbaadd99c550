//! Checks a block before anything of it is read, so that no read goes out of bounds or returns a value that replay does not expect.

use super::{
    Block, FieldMeta, HEAD, Kind, Limits, MANTISSAS, POWERS, Real, Rows, SLACK, Sizes, Whole, auction, entry, kind,
    request, word,
};

impl Block {
    /// Reads the head of a block that takes `file[at..end]` and checks every number in it.
    ///
    /// # Errors
    /// A field or a row that no writer makes.
    pub fn check(file: &[u8], at: usize, end: usize, sizes: Sizes, limits: Limits) -> Result<Self, String> {
        let inside = file.get(at..end).filter(|block| block.len() >= HEAD).ok_or("its head is not there")?;
        let head: Vec<FieldMeta> = bytemuck::pod_collect_to_vec(&inside[..HEAD]);
        let (of_request, rest) = head.split_at(request::FIELDS);
        let (of_entry, of_auction) = rest.split_at(entry::FIELDS);
        let mut from = at + HEAD;
        let mut rows = |fields: &[FieldMeta], n: u32| {
            let stride = fields.iter().map(|f| usize::from(f.width)).sum();
            let rows = Rows { at: from, stride };
            from += stride * n as usize;
            rows
        };
        if head.iter().any(|f| f.width > 8 || f.zero != [0; 5]) {
            return Err("a field of impossible width".into());
        }
        let requests = rows(of_request, sizes.requests);
        let entries = rows(of_entry, sizes.entries);
        let auctions = rows(of_auction, sizes.auctions);
        if from + 8 * sizes.ads as usize + SLACK != end {
            return Err("its rows do not fill it".into());
        }
        let checker = Checker { file };
        let groups = [(requests, sizes.requests), (entries, sizes.entries), (auctions, sizes.auctions)];
        let [of_requests, of_entries, of_auctions] = groups.map(|(rows, n)| Group { rows, n: n as usize });

        let mut request = [Whole::default(); request::FIELDS];
        let mut best = None;
        for (field, meta) in of_request.iter().enumerate() {
            let at = offset(of_request, field);
            let most = match field {
                request::SLOT | request::REGION => u64::from(u32::MAX),
                request::ENTRIES_END => u64::from(sizes.entries),
                request::AUCTIONS_END => u64::from(sizes.auctions),
                request::VIEWER => request::MOST_VIEWER,
                _ => u64::MAX,
            };
            match field {
                request::BEST if meta.kind == kind::OF_FIRST => {
                    if *meta != (FieldMeta { kind: kind::OF_FIRST, ..FieldMeta::default() }) {
                        return Err("a field of impossible width".into());
                    }
                }
                request::BEST => best = Some(checker.real(meta, at, of_requests, f64::MAX)?),
                _ => request[field] = checker.whole(meta, kind::WHOLE, at, of_requests, most)?,
            }
        }
        let listed = of_auction[auction::AD].kind == kind::LISTED;
        let (ad_kind, most) = if listed { (kind::LISTED, u64::from(sizes.ads)) } else { (kind::WHOLE, u64::MAX) };
        if listed && sizes.ads == 0 || !listed && sizes.ads > 0 {
            return Err("a dictionary that nobody uses, or none where one is needed".into());
        }
        let most = if listed { most - 1 } else { most };
        let last_contract = (limits.contracts as u64).wrapping_sub(1);
        let share_or = |field: usize, pctr: usize| if field == pctr { 1.0 } else { f64::MAX };
        let entry_real = |field: usize| {
            checker.real(&of_entry[field], offset(of_entry, field), of_entries, share_or(field, entry::PCTR))
        };
        let auction_real = |field: usize| {
            checker.real(&of_auction[field], offset(of_auction, field), of_auctions, share_or(field, auction::PCTR))
        };
        if sizes.entries > 0 && limits.contracts == 0 {
            return Err("an entry names a contract that is not there".into());
        }
        let block = Self {
            requests,
            entries,
            auctions,
            request,
            best,
            contract: checker.whole(&of_entry[entry::CONTRACT], kind::WHOLE, 0, of_entries, last_contract)?,
            entry: [entry_real(1)?, entry_real(2)?, entry_real(3)?],
            ad: checker.whole(&of_auction[auction::AD], ad_kind, 0, of_auctions, most)?,
            ads: listed.then_some(from),
            auction: [auction_real(1)?, auction_real(2)?, auction_real(3)?],
        };
        block.check_requests(file, sizes, limits)?;
        Ok(block)
    }

    /// Checks the order of the requests in time, and that their entries follow one another.
    fn check_requests(&self, file: &[u8], sizes: Sizes, limits: Limits) -> Result<(), String> {
        let mut last_ms = limits.first_ms;
        for i in 0..sizes.requests as usize {
            let [entries, auctions] = self.ends(file, i);
            let number = |(from, to): (u32, u32)| to.checked_sub(from).filter(|n| *n <= u32::from(u16::MAX));
            let (Some(entries), Some(_)) = (number(entries), number(auctions)) else {
                return Err(format!("the entries of request {i} lie outside"));
            };
            if entries > sizes.widest {
                return Err(format!("request {i} has more entries than any"));
            }
            let ts_ms = self.ts_ms(file, i);
            if ts_ms < last_ms || ts_ms > limits.last_ms {
                return Err(format!("request {i} is out of order"));
            }
            last_ms = ts_ms;
        }
        let ends = match sizes.requests {
            0 => [0, 0],
            n => self.ends(file, n as usize - 1).map(|(_, end)| end),
        };
        if ends != [sizes.entries, sizes.auctions] { Err("entries without a request".into()) } else { Ok(()) }
    }
}

/// Returns the offset of a field within a row.
fn offset(fields: &[FieldMeta], field: usize) -> usize {
    fields[..field].iter().map(|f| usize::from(f.width)).sum()
}

/// A group of rows with their number.
#[derive(Clone, Copy)]
struct Group {
    rows: Rows,
    n: usize,
}

/// Checks fields of a block.
struct Checker<'a> {
    file: &'a [u8],
}

impl Checker<'_> {
    /// Reads a field of whole numbers, none of which may be above `most`.
    fn whole(&self, meta: &FieldMeta, kind: u8, at: usize, of: Group, most: u64) -> Result<Whole, String> {
        let mask = if meta.width == 0 { 0 } else { u64::MAX >> (64 - 8 * u32::from(meta.width)) };
        let field = Whole { at, mask, base: meta.base };
        if meta.kind != kind || (kind != kind::DECIMAL && meta.scale != 0) {
            return Err(format!("a field of impossible kind {}", meta.kind));
        }
        // The highest sum is that of the highest number: the base is the same for all.
        let added = (0..of.n).map(|i| word(self.file, of.rows.row(i) + at) & mask).max();
        match added.map(|added| meta.base.checked_add(added)) {
            Some(highest) if highest.is_none_or(|highest| highest > most) => Err(format!("a number beyond {most}")),
            _ => Ok(field),
        }
    }

    /// Reads a field of numbers with a fraction, all of which must lie within 0 and `most`.
    fn real(&self, meta: &FieldMeta, at: usize, of: Group, most: f64) -> Result<Real, String> {
        let (kind, highest, power) = match meta.kind {
            kind::DECIMAL => {
                let power = POWERS.get(usize::from(meta.scale)).ok_or("a decimal of impossible scale")?;
                (Kind::Decimal, MANTISSAS - 1, *power)
            }
            kind::SINGLE => (Kind::Single, u64::from(u32::MAX), 1.0),
            kind::DOUBLE => (Kind::Double, u64::MAX, 1.0),
            other => return Err(format!("a field of impossible kind {other}")),
        };
        let field = Real { number: self.whole(meta, meta.kind, at, of, highest)?, kind, power };
        let sound = |v: f64| v.is_finite() && (0.0..=most).contains(&v);
        let all = (0..of.n).all(|i| sound(field.read(self.file, of.rows.row(i))));
        if all { Ok(field) } else { Err("a row holds impossible values".into()) }
    }
}
