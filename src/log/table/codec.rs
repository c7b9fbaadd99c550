//! Decompresses the body of a Parquet page, up to a size limit.

use std::io::Read;

use bytes::Bytes;
use parquet::basic::CompressionCodec;
use parquet::errors::{ParquetError, Result};

/// Maximum decompressed size of a page, bytes. Writers cut pages at 1 MiB, DuckDB at 100 MB.
pub const MAX_PAGE: usize = 128 << 20;

/// Decompresses all of `page` but the first `plain` bytes, which are copied.
///
/// # Errors
/// A damaged body, a codec that is not supported, or more than [`MAX_PAGE`] bytes.
pub fn unpack(codec: CompressionCodec, page: &Bytes, plain: usize) -> Result<Bytes> {
    let (head, packed) = page.split_at(plain);
    if packed.is_empty() && codec != CompressionCodec::UNCOMPRESSED {
        return Ok(page.clone());
    }
    let mut out = head.to_vec();
    match codec {
        CompressionCodec::UNCOMPRESSED => {
            check(page.len())?;
            return Ok(page.clone());
        }
        CompressionCodec::SNAPPY => {
            let len = snap::raw::decompress_len(packed).map_err(damaged)?;
            check(len)?;
            out.resize(plain + len, 0);
            snap::raw::Decoder::new().decompress(packed, &mut out[plain..]).map_err(damaged)?;
        }
        CompressionCodec::GZIP => stream(flate2::read::MultiGzDecoder::new(packed), &mut out)?,
        CompressionCodec::ZSTD => {
            let says = zstd::zstd_safe::get_frame_content_size(packed).ok().flatten().unwrap_or(0);
            out.reserve(usize::try_from(says).unwrap_or(MAX_PAGE).min(MAX_PAGE));
            stream(zstd::stream::read::Decoder::with_buffer(packed).map_err(damaged)?, &mut out)?;
        }
        CompressionCodec::BROTLI => stream(brotli::Decompressor::new(packed, 4096), &mut out)?,
        CompressionCodec::LZ4_RAW => block(packed, &mut out)?,
        CompressionCodec::LZ4 => frames(packed, &mut out).or_else(|_| {
            out.truncate(plain);
            block(packed, &mut out)
        })?,
        CompressionCodec::LZO => {
            let why = "LZO is not supported; write the file with zstd, snappy, gzip, lz4 or brotli";
            return Err(ParquetError::NYI(why.into()));
        }
    }
    Ok(out.into())
}

fn damaged(e: impl std::fmt::Display) -> ParquetError {
    ParquetError::General(format!("a page cannot be unpacked: {e}"))
}

fn check(len: usize) -> Result<()> {
    if len <= MAX_PAGE {
        return Ok(());
    }
    Err(ParquetError::General(format!("a page unpacks to more than {} MiB; write smaller pages", MAX_PAGE >> 20)))
}

fn stream(reader: impl Read, out: &mut Vec<u8>) -> Result<()> {
    reader.take(MAX_PAGE as u64 + 1).read_to_end(out).map_err(damaged)?;
    check(out.len())
}

/// Decompresses one LZ4 block. Its length is not stored; one byte expands to at most 255.
fn block(packed: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let at = out.len();
    out.resize(at + packed.len().saturating_mul(255).min(MAX_PAGE), 0);
    let n = lz4_flex::block::decompress_into(packed, &mut out[at..]).map_err(damaged)?;
    out.truncate(at + n);
    Ok(())
}

/// Decompresses LZ4 in Hadoop frames: each block is preceded by its decompressed and compressed length, big-endian.
fn frames(mut packed: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let number = |packed: &mut &[u8]| {
        let bytes = packed.split_off(..4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?) as usize)
    };
    while !packed.is_empty() {
        let lengths = number(&mut packed).zip(number(&mut packed));
        let (len, body) = lengths
            .and_then(|(len, size)| Some((len, packed.split_off(..size)?)))
            .ok_or_else(|| damaged("its frames do not add up"))?;
        let at = out.len();
        check(at.saturating_add(len))?;
        out.resize(at + len, 0);
        let n = lz4_flex::block::decompress_into(body, &mut out[at..]).map_err(damaged)?;
        if n != len {
            return Err(damaged("a frame is shorter than it says"));
        }
    }
    Ok(())
}
