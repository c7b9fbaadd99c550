//! The layout of a block of a compiled log, and reading single requests and entries out of it.
//!
//! A block has three groups of rows: requests, contract entries and auction entries. All rows of a group have the same length,
//! so a row is found by its number and read without the others. A field takes as many whole bytes as the block's values need: it
//! holds the difference from the block's lowest value, which takes no byte where all values are equal. Numbers with a fraction are
//! stored as decimals where this gives back the very bits, else as floats. [`super::pack`] writes blocks.
//!
//! A block begins with a [`FieldMeta`] per field, then come the three groups, the dictionary of auction ads and [`SLACK`] zero
//! bytes. A read takes eight bytes and masks them, hence the slack.

use bytemuck::{Pod, Zeroable};

use super::records::{Auction, Entry, Request};

/// Bytes after the last row, so that the last field can be read like the others.
pub(super) const SLACK: usize = 8;
/// Highest power of ten that is a double exactly.
const MOST_SCALE: usize = 22;
/// Powers of ten by which a mantissa is divided. Both are exact, so the quotient is the double nearest to the decimal.
pub(super) const POWERS: [f64; MOST_SCALE + 1] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];
/// Mantissas of decimals are below this, so that they are doubles exactly.
pub(super) const MANTISSAS: u64 = 1 << 53;

/// How a field's number is read.
pub(super) mod kind {
    /// The number itself.
    pub const WHOLE: u8 = 0;
    /// A mantissa, to be divided by a power of ten.
    pub const DECIMAL: u8 = 1;
    /// The bits of a single-precision float that equals the value.
    pub const SINGLE: u8 = 2;
    /// The bits of a double.
    pub const DOUBLE: u8 = 3;
    /// An index into the dictionary of auction ads.
    pub const LISTED: u8 = 4;
    /// Not stored: the worth of the first auction entry, or 0.
    pub const OF_FIRST: u8 = 5;
}

/// A field as stored: a value is `base` plus the field's bytes, read by `kind`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct FieldMeta {
    pub base: u64,
    /// Bytes in a row, at most 8.
    pub width: u8,
    pub kind: u8,
    /// Power of ten of a decimal.
    pub scale: u8,
    pub zero: [u8; 5],
}

/// Fields of a request, in the order of a row.
pub(super) mod request {
    pub const ID: usize = 0;
    pub const TIME: usize = 1;
    pub const BEST: usize = 2;
    pub const USER: usize = 3;
    /// Number of entries of the block up to and including this request's.
    pub const ENTRIES_END: usize = 4;
    pub const AUCTIONS_END: usize = 5;
    pub const SLOT: usize = 6;
    pub const REGION: usize = 7;
    /// `30 * has_user + 10 * gender + age`.
    pub const VIEWER: usize = 8;
    pub const FIELDS: usize = 9;
}

/// Fields of a contract entry.
pub(super) mod entry {
    pub const CONTRACT: usize = 0;
    pub const PCTR: usize = 1;
    /// Then eCPM and boost.
    pub const FIELDS: usize = 4;
}

/// Fields of an auction entry.
pub(super) mod auction {
    pub const AD: usize = 0;
    pub const ECPM: usize = 1;
    pub const PCTR: usize = 2;
    /// Then the boost.
    pub const FIELDS: usize = 4;
}

pub(super) const FIELDS: usize = request::FIELDS + entry::FIELDS + auction::FIELDS;
/// Bytes before the first row.
pub(super) const HEAD: usize = FIELDS * size_of::<FieldMeta>();

/// Numbers of rows of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub requests: u32,
    pub entries: u32,
    pub auctions: u32,
    /// Largest number of contract entries of one request.
    pub widest: u32,
    /// Ads in the dictionary.
    pub ads: u32,
}

/// Limits of the values of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub first_ms: u64,
    pub last_ms: u64,
    pub contracts: usize,
}

/// Reads eight bytes. Blocks are checked before they are read, so there is always something at `at`; a default instead of a panic lets
/// the compiler leave out fields that nobody uses.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(<[u8]>::first_chunk) {
        Some(eight) => u64::from_le_bytes(*eight),
        None => 0,
    }
}

/// A field of whole numbers.
#[derive(Debug, Clone, Copy, Default)]
struct Whole {
    /// Offset within a row.
    at: usize,
    mask: u64,
    base: u64,
}

impl Whole {
    #[inline(always)]
    fn read(&self, bytes: &[u8], row: usize) -> u64 {
        self.base.wrapping_add(word(bytes, row + self.at) & self.mask)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Decimal,
    Single,
    Double,
}

/// A field of numbers with a fraction.
#[derive(Debug, Clone, Copy)]
struct Real {
    number: Whole,
    kind: Kind,
    /// Divisor of a decimal.
    power: f64,
}

impl Real {
    #[inline(always)]
    fn of(&self, number: u64) -> f64 {
        match self.kind {
            // A mantissa is below 2^53; a signed conversion is one instruction.
            Kind::Decimal => number as i64 as f64 / self.power,
            Kind::Single => f64::from(f32::from_bits(number as u32)),
            Kind::Double => f64::from_bits(number),
        }
    }

    #[inline(always)]
    fn read(&self, bytes: &[u8], row: usize) -> f64 {
        self.of(self.number.read(bytes, row))
    }
}

/// Rows of one group: offset of the first in the file, and bytes of each.
#[derive(Debug, Clone, Copy, Default)]
struct Rows {
    at: usize,
    stride: usize,
}

impl Rows {
    #[inline(always)]
    fn row(&self, i: usize) -> usize {
        self.at + i * self.stride
    }
}

/// A block whose bytes were checked, ready to be read. All methods take the bytes of the file.
#[derive(Debug)]
pub(super) struct Block {
    requests: Rows,
    entries: Rows,
    auctions: Rows,
    request: [Whole; request::FIELDS],
    /// `None`: the worth of the first auction entry.
    best: Option<Real>,
    contract: Whole,
    entry: [Real; entry::FIELDS - 1],
    ad: Whole,
    /// Offset of the dictionary of auction ads, if there is one.
    ads: Option<usize>,
    auction: [Real; auction::FIELDS - 1],
}

impl Block {
    #[inline(always)]
    pub fn ts_ms(&self, bytes: &[u8], i: usize) -> u64 {
        self.request[request::TIME].read(bytes, self.requests.row(i))
    }

    /// Returns where the entries of request `i` begin and end: contract entries, then auction entries.
    #[inline(always)]
    fn ends(&self, bytes: &[u8], i: usize) -> [(u32, u32); 2] {
        let row = self.requests.row(i);
        [request::ENTRIES_END, request::AUCTIONS_END].map(|field| {
            let field = &self.request[field];
            let from = if i == 0 { 0 } else { field.read(bytes, row - self.requests.stride) };
            (from as u32, field.read(bytes, row) as u32)
        })
    }

    /// Returns request `i` of the block, which is block `number` of its log.
    #[inline(always)]
    pub fn request(&self, bytes: &[u8], number: usize, i: usize) -> Request {
        let row = self.requests.row(i);
        let read = |field: usize| self.request[field].read(bytes, row);
        let [entries, auctions] = self.ends(bytes, i);
        let viewer = read(request::VIEWER) as u8;
        let has_user = viewer / 30;
        let best = match &self.best {
            Some(best) => best.read(bytes, row),
            None if auctions.0 == auctions.1 => 0.0,
            None => self.auction[auction::ECPM - 1].read(bytes, self.auctions.row(auctions.0 as usize)) / 1000.0,
        };
        Request {
            request_id: read(request::ID),
            ts_ms: read(request::TIME),
            best,
            user_id: if has_user != 0 { read(request::USER) } else { 0 },
            block: number as u32,
            entries_at: entries.0,
            auctions_at: auctions.0,
            slot_id: read(request::SLOT) as u32,
            region: read(request::REGION) as u32,
            entries: (entries.1 - entries.0) as u16,
            auctions: (auctions.1 - auctions.0) as u16,
            gender: viewer % 30 / 10,
            age: viewer % 10,
            has_user,
            padding: [0; 5],
        }
    }

    #[inline(always)]
    fn entry(&self, bytes: &[u8], i: usize) -> Entry {
        let row = self.entries.row(i);
        let [pctr, ecpm, boost] = &self.entry;
        Entry {
            pctr: pctr.read(bytes, row),
            ecpm: ecpm.read(bytes, row),
            boost: boost.read(bytes, row),
            contract: self.contract.read(bytes, row) as u32,
            padding: 0,
        }
    }

    #[inline(always)]
    fn auction(&self, bytes: &[u8], i: usize) -> Auction {
        let row = self.auctions.row(i);
        let [ecpm, pctr, boost] = &self.auction;
        let number = self.ad.read(bytes, row);
        Auction {
            ad_id: match self.ads {
                None => number,
                Some(at) => word(bytes, at + number as usize * 8),
            },
            ecpm: ecpm.read(bytes, row),
            pctr: pctr.read(bytes, row),
            boost: boost.read(bytes, row),
        }
    }

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
        let checker = Checker { file, contracts: limits.contracts };
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
                request::VIEWER => 59,
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
    contracts: usize,
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
            Some(highest) if highest.is_none_or(|highest| highest > most) => {
                Err(format!("a number beyond {most} (of {} contracts)", self.contracts))
            }
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

/// A row of entries that a block stores.
pub trait Packed: Copy {
    #[doc(hidden)]
    fn unpack(of: Stored<'_>, i: usize) -> Self;
}

impl Packed for Entry {
    #[inline(always)]
    fn unpack(of: Stored<'_>, i: usize) -> Self {
        of.block.entry(of.file, i)
    }
}

impl Packed for Auction {
    #[inline(always)]
    fn unpack(of: Stored<'_>, i: usize) -> Self {
        of.block.auction(of.file, i)
    }
}

/// A block with the bytes of its file.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    pub(super) block: &'a Block,
    pub(super) file: &'a [u8],
}

/// Consecutive entries of a request, in memory or in a compiled log.
#[derive(Debug, Clone, Copy)]
pub enum Entries<'a, T> {
    Plain(&'a [T]),
    /// Entries `from..end` of a block.
    Stored {
        of: Stored<'a>,
        from: u32,
        end: u32,
    },
}

impl<'a, T: Packed> Entries<'a, T> {
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Plain(rows) => rows.len(),
            Self::Stored { from, end, .. } => (end - from) as usize,
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn first(&self) -> Option<T> {
        self.iter().next()
    }

    #[inline]
    pub fn iter(&self) -> EntriesIter<'a, T> {
        EntriesIter { of: *self, next: 0 }
    }

    /// Appends all entries to `out`.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<T>) {
        match *self {
            Self::Plain(rows) => out.extend_from_slice(rows),
            Self::Stored { of, from, end } => out.extend((from..end).map(|i| T::unpack(of, i as usize))),
        }
    }

    pub fn to_vec(&self) -> Vec<T> {
        self.iter().collect()
    }
}

impl<'a, T: Packed> IntoIterator for Entries<'a, T> {
    type Item = T;
    type IntoIter = EntriesIter<'a, T>;

    #[inline]
    fn into_iter(self) -> EntriesIter<'a, T> {
        self.iter()
    }
}

impl<'a, T> From<&'a [T]> for Entries<'a, T> {
    fn from(rows: &'a [T]) -> Self {
        Self::Plain(rows)
    }
}

/// Iterator over [`Entries`].
#[derive(Debug, Clone)]
pub struct EntriesIter<'a, T> {
    of: Entries<'a, T>,
    next: usize,
}

impl<T: Packed> Iterator for EntriesIter<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        let row = match &self.of {
            Entries::Plain(rows) => rows.get(self.next).copied(),
            Entries::Stored { of, from, end } => {
                let i = *from as usize + self.next;
                (i < *end as usize).then(|| T::unpack(*of, i))
            }
        };
        self.next += usize::from(row.is_some());
        row
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.of.len() - self.next;
        (left, Some(left))
    }
}

impl<T: Packed> ExactSizeIterator for EntriesIter<'_, T> {}
