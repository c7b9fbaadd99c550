//! The binary sparse-parameter file: a table's rows with their optimiser state, ids ascending.
//!
//! Little-endian: magic `ADMXROWS`, u32 format version, u32 dim, u32 optimiser, u32 floats of state, u64 rows, u64 xxh3 of the
//! body; then per row u64 id, `dim` f32, state f32, u32 row version. Whatever is wrong with a file is named with its offset.
//!
//! Format version 1 ends there, and is what `values dump` writes. In version 2 each row also carries its mark ([`super::marks`]): u64
//! number of its last use, u32 day. It is what runs write whose rows may go again: in a delta, a row without a use was dropped.

use std::fs::File;
use std::hash::Hasher as _;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use crate::settings::RowOptimizer;

use super::index::NO_ID;
use super::marks::{self, LastUse};
use super::table::{HostTable, TableShape};

const MAGIC: &[u8; 8] = b"ADMXROWS";
/// Format versions of rows without marks, and with them.
const VERSIONS: [u32; 2] = [1, 2];
pub(super) const HEADER: usize = 8 + 4 * 4 + 8 + 8;
const ROWS_AT: u64 = HEADER as u64 - 16;
const HASH_AT: u64 = HEADER as u64 - 8;

/// Bytes of a file that are synced together where it is written with signs of life.
const SYNCED: usize = 64 << 20;

/// What a file holds of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLayout {
    pub dim: usize,
    pub optimizer: RowOptimizer,
    /// Whether rows carry the mark of their last use.
    pub marks: bool,
}

impl RowLayout {
    /// Words of a record: row, state, version.
    pub fn words(&self) -> usize {
        self.dim + self.optimizer.state_floats(self.dim) + 1
    }

    /// Words of a record with its mark.
    pub fn file_words(&self) -> usize {
        self.words() + if self.marks { marks::FILE_WORDS } else { 0 }
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        8 + 4 * self.file_words()
    }
}

impl From<TableShape> for RowLayout {
    fn from(TableShape { dim, optimizer, marks, .. }: TableShape) -> Self {
        Self { dim, optimizer, marks }
    }
}

/// What the header of a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowFile {
    pub layout: RowLayout,
    pub rows: u64,
    hash: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum RowFileError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: offset {offset}: {what}", path.display())]
    Bad { path: PathBuf, offset: u64, what: String },
}

/// Writes a table's rows to `path`; returns the hash of the body. The caller renames and syncs.
///
/// # Errors
/// What the file system says.
pub fn write(path: &Path, table: &HostTable) -> Result<u64, RowFileError> {
    write_with_beats(path, table, &|| {})
}

/// As [`write()`]; calls `beat` now and then.
///
/// # Errors
/// What the file system says.
pub fn write_with_beats(path: &Path, table: &HostTable, beat: &impl Fn()) -> Result<u64, RowFileError> {
    let failed = |source| RowFileError::Io { path: path.to_owned(), source };
    let file = BeatingFile { file: File::create(path).map_err(failed)?, unsynced: 0, beat };
    let file = BufWriter::with_capacity(1 << 20, file);
    let rows = table.sorted_with_beats(beat).into_iter().map(|(id, record)| (id, table.file_record(record)));
    write_to(file, table.shape().into(), rows).map_err(failed)
}

/// A file that is written with signs of life. It goes to disk piece by piece: the sync at its end takes no longer than that of a piece.
struct BeatingFile<'a, F> {
    file: File,
    /// Bytes that were written since the last sync.
    unsynced: usize,
    beat: &'a F,
}

impl<F: Fn()> Write for BeatingFile<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.unsynced += written;
        if self.unsynced >= SYNCED {
            self.file.sync_data()?;
            self.unsynced = 0;
        }
        (self.beat)();
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

impl<F> Seek for BeatingFile<'_, F> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.file.seek(to)
    }
}

/// Writes rows, ids ascending: each with its record's words. Returns the hash of the body.
///
/// # Errors
/// What the writer says.
pub fn write_to<'a>(
    out: impl Write + Seek,
    layout: RowLayout,
    rows: impl Iterator<Item = (u64, &'a [u32])>,
) -> std::io::Result<u64> {
    let mut out = RowFileWriter::begin(out, layout)?;
    for (id, words) in rows {
        out.push(id, words)?;
    }
    out.finish()
}

/// Copies a file to one of another layout: marks are left out, or taken from `mark`, which gets the file's own, if it has some, and
/// returns `None` for a row that is left out. Returns the rows written. The caller renames and syncs.
///
/// # Errors
/// As [`RowFileReader::read`], and what the file system says.
pub fn copy(
    from: &Path,
    to: &Path,
    marks: bool,
    mut mark: impl FnMut(Option<LastUse>) -> Option<LastUse>,
) -> Result<u64, RowFileError> {
    let failed = |source| RowFileError::Io { path: to.to_owned(), source };
    let mut rows = RowFileReader::open(from)?;
    let found = rows.found.layout;
    let out = BufWriter::with_capacity(1 << 20, File::create(to).map_err(failed)?);
    let mut out = RowFileWriter::begin(out, RowLayout { marks, ..found }).map_err(failed)?;
    let mut record = Vec::with_capacity(found.file_words());
    while let Some((id, words)) = rows.read()? {
        let (row, its) = words.split_at(found.words());
        let Some(last) = mark(found.marks.then(|| LastUse::of(its))) else { continue };
        record.clear();
        record.extend_from_slice(row);
        if marks {
            record.extend_from_slice(&last.words());
        }
        out.push(id, &record).map_err(failed)?;
    }
    let written = out.rows;
    out.finish().map_err(failed)?;
    Ok(written)
}

/// Bytes that are hashed together, while they are in the processor's cache.
const HASHED: usize = 1 << 16;

/// Header of a file of so many rows, whose body has this hash.
fn header_of(layout: RowLayout, rows: u64, hash: u64) -> [u8; HEADER] {
    let RowLayout { dim, optimizer, marks } = layout;
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    let words = [VERSIONS[usize::from(marks)], dim as u32, optimizer.code(), optimizer.state_floats(dim) as u32];
    header[8..24].chunks_exact_mut(4).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
    header[ROWS_AT as usize..][..8].copy_from_slice(&rows.to_le_bytes());
    header[HASH_AT as usize..].copy_from_slice(&hash.to_le_bytes());
    header
}

/// Writes a file row by row.
pub struct RowFileWriter<W> {
    out: W,
    layout: RowLayout,
    rows: u64,
    hasher: XxHash3_64,
    /// Rows that are not hashed and written yet.
    waiting: Vec<u8>,
}

impl<W: Write + Seek> RowFileWriter<W> {
    /// Writes a header that does not know the rows yet.
    ///
    /// # Errors
    /// What the writer says, as below.
    pub fn begin(mut out: W, layout: RowLayout) -> std::io::Result<Self> {
        out.write_all(&header_of(layout, 0, 0))?;
        Ok(Self { out, layout, rows: 0, hasher: XxHash3_64::new(), waiting: Vec::with_capacity(2 * HASHED) })
    }

    /// Writes a row: id and record.
    pub fn push(&mut self, id: u64, words: &[u32]) -> std::io::Result<()> {
        self.rows += 1;
        self.waiting.extend_from_slice(&id.to_le_bytes());
        words.iter().for_each(|word| self.waiting.extend_from_slice(&word.to_le_bytes()));
        if self.waiting.len() >= HASHED { self.write_waiting() } else { Ok(()) }
    }

    fn write_waiting(&mut self) -> std::io::Result<()> {
        self.hasher.write(&self.waiting);
        self.out.write_all(&self.waiting)?;
        self.waiting.clear();
        Ok(())
    }

    /// Completes the header; returns the hash of the body.
    pub fn finish(mut self) -> std::io::Result<u64> {
        self.write_waiting()?;
        let hash = self.hasher.finish();
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header_of(self.layout, self.rows, hash))?;
        self.out.flush()?;
        Ok(hash)
    }
}

/// A file that is made in memory.
pub struct RowFileImage<'a> {
    bytes: &'a mut Vec<u8>,
    layout: RowLayout,
    rows: usize,
    hasher: XxHash3_64,
    hashed: usize,
}

impl<'a> RowFileImage<'a> {
    /// Begins a file of so many rows in the place of what `bytes` holds.
    pub fn begin(bytes: &'a mut Vec<u8>, layout: RowLayout, rows: usize) -> Self {
        bytes.clear();
        bytes.reserve(HEADER + rows * layout.row_bytes());
        bytes.extend_from_slice(&[0; HEADER]);
        Self { bytes, layout, rows, hasher: XxHash3_64::new(), hashed: HEADER }
    }

    /// Adds a row as it stands in files, or the next piece of one.
    pub fn push(&mut self, row: &[u8]) {
        self.bytes.extend_from_slice(row);
        if self.bytes.len() - self.hashed >= HASHED {
            self.hash();
        }
    }

    fn hash(&mut self) {
        self.hasher.write(&self.bytes[self.hashed..]);
        self.hashed = self.bytes.len();
    }

    /// Completes the header.
    ///
    /// # Panics
    /// When there are more rows or fewer.
    pub fn finish(mut self) {
        assert_eq!(self.bytes.len(), HEADER + self.rows * self.layout.row_bytes(), "a file of {} rows", self.rows);
        self.hash();
        self.bytes[..HEADER].copy_from_slice(&header_of(self.layout, self.rows as u64, self.hasher.finish()));
    }
}

/// Reads a file row by row and checks every row, and the whole at its end.
pub struct RowFileReader<R = BufReader<File>> {
    path: PathBuf,
    file: R,
    pub found: RowFile,
    /// Rows given so far.
    number: u64,
    /// Rows that were read and hashed together, and where in them the row stands that was given last.
    block: Vec<u8>,
    at: usize,
    /// Words of that row.
    words: Vec<u32>,
    hasher: XxHash3_64,
    last: Option<u64>,
}

impl RowFileReader {
    /// # Errors
    /// A file that cannot be read or is none of these.
    pub fn open(path: &Path) -> Result<Self, RowFileError> {
        let (found, file) = open(path)?;
        Ok(Self::new(path, found, file))
    }
}

impl<R: Read> RowFileReader<R> {
    /// Reads the rows behind a header.
    fn new(path: &Path, found: RowFile, file: R) -> Self {
        let words = found.layout.file_words();
        Self {
            path: path.to_owned(),
            file,
            found,
            number: 0,
            block: vec![],
            at: 0,
            words: vec![0; words],
            hasher: XxHash3_64::new(),
            last: None,
        }
    }

    /// Checks that the row that was read last has been used. Use number 0 says that a row was dropped, which stands in deltas only.
    ///
    /// # Errors
    /// The row's offset, where its mark has the number 0.
    pub fn used(&self) -> Result<LastUse, RowFileError> {
        let words = self.found.layout.words();
        let last = LastUse::of(&self.words[words..]);
        if last.number == 0 {
            let what = "the row was dropped: this file holds changes, not all rows of a table";
            return Err(self.bad(self.offset() + 8 + 4 * words as u64, what.into()));
        }
        Ok(last)
    }

    /// Offset of the row that was given last.
    fn offset(&self) -> u64 {
        HEADER as u64 + (self.number - 1) * self.found.layout.row_bytes() as u64
    }

    /// The words of the row that was given last.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Reads the rows that come next.
    fn read_block(&mut self) -> Result<(), RowFileError> {
        let len = self.found.layout.row_bytes() as u64;
        let rows = (HASHED as u64).div_ceil(len).min(self.found.rows - self.number);
        self.block.resize((rows * len) as usize, 0);
        self.at = 0;
        let read = self.file.read_exact(&mut self.block);
        read.map_err(|source| RowFileError::Io { path: self.path.clone(), source })?;
        self.hasher.write(&self.block);
        Ok(())
    }

    fn bad(&self, offset: u64, what: String) -> RowFileError {
        RowFileError::Bad { path: self.path.clone(), offset, what }
    }

    /// The next row: its id and its record's words; `None` behind the last.
    ///
    /// # Errors
    /// A file that cannot be read, ids out of order, a value that is not finite, a wrong checksum.
    pub fn read(&mut self) -> Result<Option<(u64, &[u32])>, RowFileError> {
        if self.number == self.found.rows {
            if self.hasher.finish() != self.found.hash {
                return Err(self.bad(HASH_AT, "the checksum is not that of the body: the file is damaged".into()));
            }
            return Ok(None);
        }
        let len = self.found.layout.row_bytes();
        self.at += len;
        if self.at >= self.block.len() {
            self.read_block()?;
        }
        self.number += 1;
        let (row, at) = (&self.block[self.at..self.at + len], self.offset());
        let id = u64::from_le_bytes(row[..8].try_into().expect("8 bytes"));
        for (word, bytes) in self.words.iter_mut().zip(row[8..].chunks_exact(4)) {
            *word = u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        }
        let floats = self.found.layout.words() - 1;
        if let Some(i) = self.words[..floats].iter().position(|word| !f32::from_bits(*word).is_finite()) {
            return Err(self.bad(at + 8 + 4 * i as u64, format!("a value of id {id} is not finite")));
        }
        if id == NO_ID {
            return Err(self.bad(at, format!("the id {id} means none")));
        }
        if let Some(last) = self.last.filter(|last| *last >= id) {
            let what = if last == id { "stands twice".into() } else { format!("stands behind {last}") };
            return Err(self.bad(at, format!("the id {id} {what}")));
        }
        self.last = Some(id);
        Ok(Some((id, &self.words)))
    }
}

/// Reads a file's header.
///
/// # Errors
/// A file that cannot be read or is none of these.
pub fn header(path: &Path) -> Result<RowFile, RowFileError> {
    Ok(open(path)?.0)
}

fn open(path: &Path) -> Result<(RowFile, BufReader<File>), RowFileError> {
    let io = |source| RowFileError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    let len = file.metadata().map_err(io)?.len();
    let mut file = BufReader::with_capacity(1 << 20, file);
    Ok((read_header(path, &mut file, len)?, file))
}

/// Reads the header of a file of `len` bytes.
fn read_header(path: &Path, file: &mut impl Read, len: u64) -> Result<RowFile, RowFileError> {
    let io = |source| RowFileError::Io { path: path.to_owned(), source };
    let bad = |offset: u64, what: String| RowFileError::Bad { path: path.to_owned(), offset, what };
    let mut header = [0; HEADER];
    if len < HEADER as u64 {
        return Err(bad(len, format!("a header has {HEADER} bytes, the file {len}")));
    }
    file.read_exact(&mut header).map_err(io)?;
    if &header[..8] != MAGIC {
        return Err(bad(0, "no sparse-parameter file: the magic is not ADMXROWS".into()));
    }
    let word = |i: usize| u32::from_le_bytes(header[8 + 4 * i..][..4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(header[at..][..8].try_into().expect("8 bytes"));
    let Some(marks) = VERSIONS.iter().position(|version| *version == word(0)) else {
        return Err(bad(8, format!("format version {}, this program reads 1 and 2", word(0))));
    };
    let dim = word(1) as usize;
    if !(1..=1 << 16).contains(&dim) {
        return Err(bad(12, format!("a row of {dim} floats")));
    }
    let Some(optimizer) = RowOptimizer::of_code(word(2)) else {
        return Err(bad(16, format!("optimiser {} is unknown", word(2))));
    };
    let state = optimizer.state_floats(dim);
    if word(3) as usize != state {
        return Err(bad(20, format!("{} floats of state, this optimiser has {state}", word(3))));
    }
    let rows = long(24);
    let layout = RowLayout { dim, optimizer, marks: marks == 1 };
    let row_bytes = layout.row_bytes() as u64;
    let expected = rows.checked_mul(row_bytes).and_then(|body| body.checked_add(HEADER as u64));
    if expected != Some(len) {
        return Err(bad(24, format!("{rows} rows of {row_bytes} bytes do not make a file of {len}")));
    }
    Ok(RowFile { layout, rows, hash: long(32) })
}

/// Reads the header of a file whose bytes are in memory, and checks all of them if `whole`.
///
/// # Errors
/// As [`read`].
pub fn check_bytes(path: &Path, mut bytes: &[u8], whole: bool) -> Result<RowFile, RowFileError> {
    let len = bytes.len() as u64;
    let found = read_header(path, &mut bytes, len)?;
    if whole {
        let mut rows = RowFileReader::new(path, found, bytes);
        while rows.read()?.is_some() {}
    }
    Ok(found)
}

/// Reads a file into an empty table of its shape with room for `max_rows`, or for the file's rows where those are more.
///
/// # Errors
/// A file that cannot be read, a repeated id, a wrong length or checksum, a value that is not finite; no memory.
pub fn read(path: &Path, max_rows: usize, seed: u64) -> anyhow::Result<HostTable> {
    let found = header(path)?;
    let max_rows = max_rows.max(found.rows as usize).max(1);
    let RowLayout { dim, optimizer, marks } = found.layout;
    let shape = TableShape { dim, optimizer, max_rows, seed, marks };
    let mut table = HostTable::private(shape)?;
    load(path, &mut table)?;
    Ok(table)
}

/// Reads a file into a table; its rows take the place of those that are there.
///
/// # Errors
/// As [`read`], and a table of another shape or without room.
pub fn load(path: &Path, table: &mut HostTable) -> Result<(), RowFileError> {
    let mut rows = RowFileReader::open(path)?;
    let shape = table.shape();
    let (found, expected) = (rows.found.layout, RowLayout::from(shape));
    if found != expected {
        return Err(rows.bad(12, format!("rows of {found:?}, the table has {expected:?}")));
    }
    while let Some((id, words)) = rows.read()? {
        if !table.load(id, words) {
            return Err(
                rows.bad(ROWS_AT, format!("the table has room for {} rows; raise table.max_rows", shape.max_rows))
            );
        }
    }
    Ok(())
}

/// Checks a whole file.
///
/// # Errors
/// As [`read`].
pub fn verify(path: &Path) -> Result<RowFile, RowFileError> {
    let mut rows = RowFileReader::open(path)?;
    while rows.read()?.is_some() {}
    Ok(rows.found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: TableShape =
        TableShape { dim: 4, optimizer: RowOptimizer::Adagrad, max_rows: 9, seed: 3, marks: false };

    fn filled() -> HostTable {
        let mut table = HostTable::private(SHAPE).unwrap();
        for id in [7u64, 0, 1 << 63, 12] {
            let record = table.find_or_insert(id).unwrap();
            table.update(id, record, &[0.5, -1.0, 2.0, id as f32 % 5.0], 0.1);
        }
        table
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let table = filled();
        write(&path, &table).unwrap();
        let again = read(&path, 0, 3).unwrap();
        let all = |t: &HostTable| -> Vec<(u64, Vec<u32>)> {
            t.sorted().into_iter().map(|(id, record)| (id, t.record(record).to_vec())).collect()
        };
        assert_eq!(all(&again), all(&table));
    }

    /// A large table was sorted, written and synced without a sign of life, and main killed the trainer.
    #[test]
    fn a_table_is_written_and_digested_with_signs_of_life() {
        let folder = tempfile::tempdir().unwrap();
        let mut table = HostTable::private(TableShape { max_rows: 1 << 17, ..SHAPE }).unwrap();
        (0..1 << 17).for_each(|id| assert!(table.find_or_insert(id).is_some()));
        let beats = std::cell::Cell::new(0);
        let beat = || beats.set(beats.get() + 1);
        let [plain, alive] = ["plain", "alive"].map(|name| folder.path().join(name));
        write(&plain, &table).unwrap();
        write_with_beats(&alive, &table, &beat).unwrap();
        assert!(std::fs::read(&plain).unwrap() == std::fs::read(&alive).unwrap());
        let mib = plain.metadata().unwrap().len() >> 20;
        assert!(beats.get() > 10 + mib, "{} signs for {mib} MiB", beats.get());
        beats.set(0);
        assert_eq!(table.digest_with_beats(beat), table.digest());
        assert!(beats.get() > 1, "{} signs", beats.get());
    }

    #[test]
    fn damage_is_named_with_its_offset() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        write(&path, &filled()).unwrap();
        let good = std::fs::read(&path).unwrap();
        let row = 8 + 4 * SHAPE.words();
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read(&path, 0, 3).err().expect("refused").to_string()
        };
        let changed = |at: usize, with: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + with.len()].copy_from_slice(with);
            bytes
        };
        for (bytes, expected) in [
            (good[..good.len() - 1].to_vec(), "offset 24"),
            (good[..20].to_vec(), "offset 20"),
            (changed(0, b"X"), "offset 0"),
            (changed(8, &[9]), "offset 8"),
            (changed(16, &[9]), "offset 16"),
            (changed(HEADER + row, &0u64.to_le_bytes()), "stands twice"),
            (changed(HEADER + 8, &f32::NAN.to_le_bytes()), &format!("offset {}", HEADER + 8)),
            (changed(HEADER + 8, &1.25f32.to_le_bytes()), "checksum"),
        ] {
            let message = refused(&bytes);
            assert!(message.contains(expected), "{message}, expected {expected}");
        }
    }
}
