//! Lines and comma-separated rows of text files, decompressed while they are read and never longer than [`LONGEST_ROW`].

use std::fs::File;
use std::io::{BufRead, BufReader, Error, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::row::LONGEST_ROW;
use crate::log::error::{LogError, Result};

/// Opens a text file and decompresses it by its extension (`.gz`, `.zst`).
pub fn open(path: &Path) -> Result<Box<dyn BufRead + Send>> {
    open_counted(path, Arc::default())
}

/// Opens a file like [`open`] and adds the number of bytes read from it to `read`.
pub fn open_counted(path: &Path, read: Arc<AtomicU64>) -> Result<Box<dyn BufRead + Send>> {
    let file = Counted { file: File::open(path).map_err(|e| LogError::io(path, e))?, read };
    let raw: Box<dyn Read + Send> = match path.extension().and_then(|e| e.to_str()) {
        Some("gz") => Box::new(flate2::read::MultiGzDecoder::new(BufReader::new(file))),
        Some("zst") => Box::new(zstd::stream::read::Decoder::new(file).map_err(|e| LogError::io(path, e))?),
        _ => Box::new(file),
    };
    Ok(Box::new(BufReader::with_capacity(1 << 18, raw)))
}

struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.file.read(buffer)?;
        // Relaxed: the counter only shows progress.
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    End,
    Whole,
    /// Longer than [`LONGEST_ROW`]; the start is kept and the rest skipped.
    TooLong,
}

/// Reads the next non-empty line into `text`, without its line end; `number` counts all lines, as an editor does.
pub fn read_line(reader: &mut dyn BufRead, text: &mut Vec<u8>, number: &mut u64) -> std::io::Result<Line> {
    loop {
        text.clear();
        let mut line = Line::End;
        loop {
            let bytes = match reader.fill_buf() {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                bytes => bytes?,
            };
            if bytes.is_empty() {
                break;
            }
            if line == Line::End {
                line = Line::Whole;
            }
            let end = memchr::memchr(b'\n', bytes);
            let part = &bytes[..end.unwrap_or(bytes.len())];
            let room = LONGEST_ROW - text.len();
            if part.len() > room {
                line = Line::TooLong;
            }
            text.extend_from_slice(&part[..part.len().min(room)]);
            let used = part.len() + usize::from(end.is_some());
            reader.consume(used);
            if end.is_some() {
                break;
            }
        }
        if line == Line::End {
            return Ok(line);
        }
        *number += 1;
        text.pop_if(|end| *end == b'\r');
        if !text.is_empty() {
            return Ok(line);
        }
    }
}

/// Comma-separated rows, quoted as in RFC 4180.
pub struct CsvRows {
    rows: csv::Reader<Metered>,
    /// Bytes read since the last row was returned.
    taken: Arc<AtomicUsize>,
    pub cells: csv::ByteRecord,
}

/// A reader that fails once a row takes too many bytes, for example because of an unclosed quote.
struct Metered {
    inner: Box<dyn BufRead + Send>,
    taken: Arc<AtomicUsize>,
}

impl Read for Metered {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(buffer)?;
        // Relaxed: only this thread uses the counter.
        if self.taken.fetch_add(n, Ordering::Relaxed) > LONGEST_ROW {
            let why = format!("a row of more than {} MiB; is a quote not closed?", LONGEST_ROW >> 20);
            return Err(Error::new(std::io::ErrorKind::InvalidData, why));
        }
        Ok(n)
    }
}

impl CsvRows {
    pub fn new(inner: Box<dyn BufRead + Send>) -> Self {
        let taken = Arc::new(AtomicUsize::new(0));
        let metered = Metered { inner, taken: Arc::clone(&taken) };
        let rows = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(metered);
        Self { rows, taken, cells: csv::ByteRecord::new() }
    }

    /// Reads the next row; returns its line number, or `None` at the end of the file.
    pub fn read(&mut self) -> std::io::Result<Option<u64>> {
        self.taken.store(0, Ordering::Relaxed);
        let more = self.rows.read_byte_record(&mut self.cells).map_err(|e| match e.into_kind() {
            csv::ErrorKind::Io(e) => e,
            other => Error::other(format!("{other:?}")),
        })?;
        Ok(more.then(|| self.cells.position().map_or(0, csv::Position::line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_passed_over_and_the_next_one_read() {
        let bytes = [&b"first\r\n\n"[..], &vec![b'x'; LONGEST_ROW + 9], b"\nlast"].concat();
        let (mut reader, mut text, mut line) = (std::io::Cursor::new(bytes), vec![], 0);
        let mut next = |text: &mut Vec<u8>| (read_line(&mut reader, text, &mut line).unwrap(), line);
        assert_eq!((next(&mut text), &text[..]), ((Line::Whole, 1), &b"first"[..]));
        assert_eq!(next(&mut text), (Line::TooLong, 3));
        assert_eq!(text.len(), LONGEST_ROW);
        assert_eq!((next(&mut text), &text[..]), ((Line::Whole, 4), &b"last"[..]));
        assert_eq!(next(&mut text), (Line::End, 4));
    }

    #[test]
    fn a_quote_that_is_not_closed_ends_with_an_error_and_not_with_the_memory() {
        let endless = std::io::Cursor::new(b"a,b\n1,\"".to_vec()).chain(std::io::repeat(b'x'));
        let mut rows = CsvRows::new(Box::new(BufReader::new(endless)));
        assert_eq!((rows.read().unwrap(), rows.cells.len()), (Some(1), 2));
        let error = rows.read().unwrap_err().to_string();
        assert!(error.contains("is a quote not closed?"), "{error}");
    }
}
