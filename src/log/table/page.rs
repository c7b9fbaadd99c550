//! Limits on Parquet pages.
//!
//! The library decompresses a page to any size and allocates as many values as a page claims: a file of a few kilobytes can ask
//! for gigabytes, and a failed allocation cannot be caught. Here the library reads column chunks as if they were not
//! compressed; this reader decompresses each page up to [`codec::MAX_PAGE`] bytes and checks every count by which the library would
//! allocate.

use std::fs::File;
use std::io::{BufReader, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{CompressionCodec, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::codec;

/// Maximum number of values in a page, including nulls and repetitions.
const MAX_VALUES: u32 = 1 << 24;
/// Maximum number of values in a dictionary.
const MAX_DICTIONARY: u32 = 1 << 22;

/// A file of known length; reads beyond its end are refused.
pub struct Chunks {
    file: File,
    len: u64,
}

impl Chunks {
    pub fn open(file: File) -> std::io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { file, len })
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Chunks {
    type T = BufReader<File>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(BufReader::new(file))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} lie outside the file")));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// The pages of one column chunk.
pub struct Pages {
    inner: SerializedPageReader<Chunks>,
    codec: CompressionCodec,
    /// Maximum repetition and definition levels.
    levels: (i16, i16),
}

impl Pages {
    pub fn of(chunks: &Arc<Chunks>, group: &RowGroupMetaData, column: usize) -> Result<Self> {
        let chunk = group.column(column);
        let raw = chunk.clone().into_builder().set_compression_codec(CompressionCodec::UNCOMPRESSED).build()?;
        let rows = usize::try_from(group.num_rows())?;
        let inner = SerializedPageReader::new(Arc::clone(chunks), &raw, rows, None)?;
        let levels = (chunk.column_descr().max_rep_level(), chunk.column_descr().max_def_level());
        Ok(Self { inner, codec: chunk.compression_codec(), levels })
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(mut page) = self.inner.get_next_page()? else { return Ok(None) };
        match &mut page {
            Page::DataPage { buf, num_values, encoding, rep_level_encoding, def_level_encoding, .. } => {
                *buf = codec::unpack(self.codec, buf, 0)?;
                limit("values of a page", *num_values, MAX_VALUES)?;
                let mut at = 0;
                for (level, encoding) in [(self.levels.0, *rep_level_encoding), (self.levels.1, *def_level_encoding)] {
                    at += levels_before(level, encoding, *num_values, &buf[at..])?;
                }
                check_lengths(*encoding, &buf[at..], *num_values)?;
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                def_levels_byte_len,
                rep_levels_byte_len,
                is_compressed,
                ..
            } => {
                let levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
                if levels > buf.len() {
                    return Err(ParquetError::EOF("a page is shorter than its levels".into()));
                }
                if *is_compressed {
                    *buf = codec::unpack(self.codec, buf, levels)?;
                }
                limit("values of a page", *num_values, MAX_VALUES)?;
                check_lengths(*encoding, &buf[levels..], *num_values)?;
            }
            Page::DictionaryPage { buf, num_values, .. } => {
                *buf = codec::unpack(self.codec, buf, 0)?;
                limit("values of a dictionary", *num_values, MAX_DICTIONARY.min(buf.len() as u32))?;
            }
        }
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.inner.skip_next_page()
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

fn limit(what: &str, n: u32, most: u32) -> Result<()> {
    if n <= most { Ok(()) } else { Err(ParquetError::General(format!("{n} {what}; at most {most} are read"))) }
}

fn cut() -> ParquetError {
    ParquetError::EOF("a page ends in the middle".into())
}

/// Returns the bytes of the levels up to `max` at the start of a version 1 page.
fn levels_before(max: i16, encoding: Encoding, values: u32, bytes: &[u8]) -> Result<usize> {
    if max == 0 {
        return Ok(0);
    }
    let len = match encoding {
        Encoding::RLE => {
            let prefix = bytes.first_chunk::<4>().ok_or_else(cut)?;
            4 + u32::from_le_bytes(*prefix) as usize
        }
        _ => (values as usize * (16 - max.leading_zeros()) as usize).div_ceil(8),
    };
    if len <= bytes.len() { Ok(len) } else { Err(cut()) }
}

/// Checks that there are no more string lengths, which the library decodes all at once, than the page has values.
fn check_lengths(encoding: Encoding, bytes: &[u8], values: u32) -> Result<()> {
    let lists = match encoding {
        Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
        Encoding::DELTA_BYTE_ARRAY => 2,
        _ => return Ok(()),
    };
    let mut rest = bytes;
    for _ in 0..lists {
        skip_deltas(&mut rest, values)?;
    }
    Ok(())
}

/// Skips one delta-packed list of at most `most` numbers.
fn skip_deltas(rest: &mut &[u8], most: u32) -> Result<()> {
    let (block, minis, count) = (varint(rest)?, varint(rest)?, varint(rest)?);
    varint(rest)?;
    if count > u64::from(most) {
        return Err(ParquetError::General(format!("{count} lengths for the {most} values of a page")));
    }
    if minis == 0 || block % minis != 0 || block > 1 << 20 {
        return Err(ParquetError::General(format!("blocks of {block} numbers in {minis} parts")));
    }
    let mut left = count.saturating_sub(1);
    while left > 0 {
        varint(rest)?;
        let widths = rest.split_off(..minis as usize).ok_or_else(cut)?;
        for &width in widths {
            if left == 0 {
                break;
            }
            let bytes = usize::from(width) * (block / minis) as usize / 8;
            rest.split_off(..bytes).ok_or_else(cut)?;
            left = left.saturating_sub(block / minis);
        }
    }
    Ok(())
}

fn varint(rest: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first().ok_or_else(cut)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(cut())
}
