//! What is done to bytes: flips, extremes, cuts, splices; the same seed does the same.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

const BYTES: &[u8] = &[0, 1, 0x7f, 0x80, 0xfe, 0xff, b'0', b'-', b'"', b'\n', b'\t', b'{', b'['];
/// What a number, or any word, of a text is replaced by.
const WORDS: &[&str] = &[
    "0",
    "-1",
    "1",
    "2",
    "255",
    "256",
    "65536",
    "4294967296",
    "4611686018427387904",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "1e-320",
    "1e308",
    "-1e308",
    "1e999",
    "0.5",
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "nan",
    "inf",
    "",
];

/// Changes `bytes` in one to four ways; pieces come from `others` too.
pub fn mutate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..rng.random_range(1..=4) {
        once(rng, bytes, others);
    }
    // Growth must not make every later input slow.
    bytes.truncate(1 << 21);
}

/// A place in `bytes`; often near the start, where headers are.
fn place(rng: &mut ChaCha8Rng, len: usize) -> usize {
    let near = rng.random_bool(0.3);
    rng.random_range(0..if near { len.min(256) } else { len })
}

fn range(rng: &mut ChaCha8Rng, len: usize) -> std::ops::Range<usize> {
    let from = place(rng, len);
    let most = if rng.random_bool(0.8) { 64 } else { len };
    from..(from + rng.random_range(1..=most)).min(len)
}

fn once(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    if bytes.is_empty() {
        bytes.extend_from_slice(&others[rng.random_range(0..others.len())]);
        return;
    }
    let len = bytes.len();
    match rng.random_range(0..12) {
        0 => {
            let at = place(rng, len);
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        1 => {
            let at = place(rng, len);
            bytes[at] = BYTES[rng.random_range(0..BYTES.len())];
        }
        2 | 3 => field(rng, bytes),
        4 => bytes.truncate(rng.random_range(0..len)),
        5 => {
            let more = rng.random_range(1..200);
            let byte = BYTES[rng.random_range(0..BYTES.len())];
            bytes.extend(std::iter::repeat_n(byte, more));
        }
        6 => {
            let other = &others[rng.random_range(0..others.len())];
            let (to, from) = (range(rng, len), range(rng, other.len().max(1)));
            bytes.splice(to, other.get(from).unwrap_or_default().iter().copied());
        }
        7 => {
            let copied = bytes[range(rng, len)].to_vec();
            let at = place(rng, len);
            bytes.splice(at..at, copied);
        }
        8 => {
            bytes.drain(range(rng, len));
        }
        _ => word(rng, bytes),
    }
}

/// Sets a field of 1, 2, 4 or 8 bytes, mostly aligned, to an extreme or to something near the length.
fn field(rng: &mut ChaCha8Rng, bytes: &mut [u8]) {
    let len = bytes.len();
    let width = 1 << rng.random_range(0..4);
    let mut at = place(rng, len);
    if rng.random_bool(0.8) {
        at -= at % width;
    }
    let near =
        [0, 1, 2, len as u64, len as u64 + 1, len as u64 * 2, 1 << 20, 1 << 31, 1 << 32, 1 << 40, 1 << 62, 1 << 63];
    let value = match rng.random_range(0..4) {
        0 => u64::MAX - rng.random_range(0..3),
        1 => (u64::MAX >> 1) - rng.random_range(0..2),
        2 => rng.random(),
        _ => near[rng.random_range(0..near.len())],
    };
    for (byte, new) in bytes[at..].iter_mut().zip(value.to_le_bytes().into_iter().take(width)) {
        *byte = new;
    }
}

/// Replaces a number, or a run of letters, by another one.
fn word(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    let part = |b: &u8| b.is_ascii_alphanumeric() || b"+-.".contains(b);
    let from = place(rng, bytes.len());
    let Some(start) = bytes[from..].iter().position(part).map(|at| from + at) else { return };
    let start = bytes[..start].iter().rposition(|b| !part(b)).map_or(0, |at| at + 1);
    let end = bytes[start..].iter().position(|b| !part(b)).map_or(bytes.len(), |at| start + at);
    bytes.splice(start..end, WORDS[rng.random_range(0..WORDS.len())].bytes());
}
