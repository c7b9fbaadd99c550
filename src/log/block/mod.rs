//! The layout of a block of a compiled log, and reading single requests and entries out of it.
//!
//! A block has three groups of rows: requests, contract entries and auction entries. All rows of a group have the same length,
//! so a row is found by its number and read without the others. A field takes as many whole bytes as the block's values need: it
//! holds the difference from the block's lowest value, which takes no byte where all values are equal. Numbers with a fraction are
//! stored as decimals where this gives back the very bits, else as floats. [`pack`] writes blocks,
//! [`check`] checks them before they are read, and [`entries`] is how the rest of the project sees them.
//!
//! A block begins with a [`FieldMeta`] per field, then come the three groups, the dictionary of auction ads and [`SLACK`] zero
//! bytes. A read takes eight bytes and masks them, hence the slack.

mod check;
mod entries;
mod pack;

use bytemuck::{Pod, Zeroable};

use super::records::{Auction, ContractEntry, Request};

pub(super) use entries::Stored;
pub use entries::{Entries, EntriesIter};
pub(super) use pack::Packer;

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
    /// Whether there is a user, gender and age in one number ([`viewer`]).
    pub const VIEWER: usize = 8;
    pub const FIELDS: usize = 9;
    /// Highest number of a viewer.
    pub const MOST_VIEWER: u64 = 59;

    pub fn viewer(has_user: u8, gender: u8, age: u8) -> u64 {
        u64::from(30 * has_user + 10 * gender + age)
    }

    /// Returns what [`viewer`] was given.
    #[inline(always)]
    pub fn of_viewer(viewer: u8) -> (u8, u8, u8) {
        (viewer / 30, viewer % 30 / 10, viewer % 10)
    }
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
        let (has_user, gender, age) = request::of_viewer(read(request::VIEWER) as u8);
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
            gender,
            age,
            has_user,
            padding: [0; 5],
        }
    }

    #[inline(always)]
    fn entry(&self, bytes: &[u8], i: usize) -> ContractEntry {
        let row = self.entries.row(i);
        let [pctr, ecpm, boost] = &self.entry;
        ContractEntry {
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
}
