//! Writes `track_log` as Parquet: row groups of some thousand requests, encoded by a separate thread while the next are drawn.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::Result;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::schema::{AdType, TrackRow};

/// Requests per row group: large enough to compress well, small enough for many cores to read a file in parallel.
const GROUP: usize = 1 << 14;

const SCHEMA: &str = "message track_log {
    required int64 request_id (INTEGER(64, false));
    required int64 ts_ms (INTEGER(64, false));
    required int32 slot_id (INTEGER(32, false));
    required int32 region (INTEGER(32, false));
    required int32 gender;
    required int32 age;
    optional int64 user_id (INTEGER(64, false));
    required group queue (LIST) {
        repeated group list {
            required group element {
                required int64 ad_id (INTEGER(64, false));
                required binary type (UTF8);
                required double ecpm;
                required double pctr;
                required int64 filter (INTEGER(64, false));
                required double boost;
            }
        }
    }
}";

/// A `track_log.parquet` being written.
pub struct ParquetTrack {
    path: PathBuf,
    held: Vec<TrackRow>,
    groups: Option<SyncSender<Vec<TrackRow>>>,
    writer: Option<JoinHandle<Result<()>>>,
}

impl ParquetTrack {
    /// Creates the file.
    ///
    /// # Errors
    /// A file that cannot be created.
    pub fn create(path: &Path) -> std::io::Result<Self> {
        let file = File::create(path)?;
        let (groups, received) = sync_channel::<Vec<TrackRow>>(1);
        let writer = std::thread::spawn(move || {
            let level = Compression::ZSTD(ZstdLevel::try_new(1)?);
            let properties = WriterProperties::builder().set_compression(level).set_created_by("admix".into()).build();
            let mut file =
                SerializedFileWriter::new(file, Arc::new(parse_message_type(SCHEMA)?), Arc::new(properties))?;
            for rows in received {
                write_group(file.next_row_group()?, &rows)?;
            }
            file.close().map(drop)
        });
        Ok(Self { path: path.to_owned(), held: Vec::new(), groups: Some(groups), writer: Some(writer) })
    }

    /// Appends a row.
    ///
    /// # Errors
    /// Any error of the writing thread.
    pub fn push(&mut self, row: TrackRow) -> std::io::Result<()> {
        self.held.push(row);
        if self.held.len() == GROUP { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> std::io::Result<()> {
        let rows = std::mem::take(&mut self.held);
        match self.groups.as_ref().map(|groups| groups.send(rows)) {
            Some(Ok(())) => Ok(()),
            // The thread has ended; joining it returns the reason.
            _ => self.end(),
        }
    }

    fn end(&mut self) -> std::io::Result<()> {
        drop(self.groups.take());
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let outcome = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.map_err(|e| std::io::Error::other(format!("{}: {e}", self.path.display())))
    }

    /// Writes the last row group and the footer; a file that is only dropped cannot be read.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn finish(mut self) -> std::io::Result<()> {
        if !self.held.is_empty() {
            self.send()?;
        }
        self.end()
    }
}

/// Writes the columns of a row group in the order of the schema.
fn write_group(mut group: SerializedRowGroupWriter<'_, File>, rows: &[TrackRow]) -> Result<()> {
    let entries = || rows.iter().flat_map(|r| &r.queue);
    let wide = |f: fn(&TrackRow) -> u64| rows.iter().map(|r| f(r) as i64).collect::<Vec<_>>();
    let narrow = |f: fn(&TrackRow) -> u32| rows.iter().map(|r| f(r) as i32).collect::<Vec<_>>();
    plain::<Int64Type>(&mut group, &wide(|r| r.request_id))?;
    plain::<Int64Type>(&mut group, &wide(|r| r.ts_ms))?;
    plain::<Int32Type>(&mut group, &narrow(|r| r.slot_id))?;
    plain::<Int32Type>(&mut group, &narrow(|r| r.region))?;
    plain::<Int32Type>(&mut group, &narrow(|r| r.gender.into()))?;
    plain::<Int32Type>(&mut group, &narrow(|r| r.age.into()))?;
    let users: Vec<i64> = rows.iter().filter_map(|r| r.user_id).map(|u| u as i64).collect();
    let known: Vec<i16> = rows.iter().map(|r| i16::from(r.user_id.is_some())).collect();
    column::<Int64Type>(&mut group, &users, Some(&known), None)?;

    // An empty list has one level, which marks it as empty.
    let (mut def, mut rep) = (Vec::new(), Vec::new());
    for row in rows {
        def.extend((0..row.queue.len().max(1)).map(|_| i16::from(!row.queue.is_empty())));
        rep.extend((0..row.queue.len().max(1)).map(|i| i16::from(i > 0)));
    }
    let levels = (Some(&def[..]), Some(&rep[..]));
    let ids: Vec<i64> = entries().map(|e| e.ad_id as i64).collect();
    column::<Int64Type>(&mut group, &ids, levels.0, levels.1)?;
    let letter = |kind| ByteArray::from(if kind == AdType::Contract { "C" } else { "A" });
    let (contract, auction) = (letter(AdType::Contract), letter(AdType::Auction));
    let kinds: Vec<ByteArray> =
        entries().map(|e| if e.ad_type == AdType::Contract { contract.clone() } else { auction.clone() }).collect();
    column::<ByteArrayType>(&mut group, &kinds, levels.0, levels.1)?;
    column::<DoubleType>(&mut group, &entries().map(|e| e.ecpm).collect::<Vec<_>>(), levels.0, levels.1)?;
    column::<DoubleType>(&mut group, &entries().map(|e| e.pctr).collect::<Vec<_>>(), levels.0, levels.1)?;
    let filters: Vec<i64> = entries().map(|e| e.filter as i64).collect();
    column::<Int64Type>(&mut group, &filters, levels.0, levels.1)?;
    column::<DoubleType>(&mut group, &entries().map(|e| e.boost).collect::<Vec<_>>(), levels.0, levels.1)?;
    group.close().map(drop)
}

fn plain<T: DataType>(group: &mut SerializedRowGroupWriter<'_, File>, values: &[T::T]) -> Result<()> {
    column::<T>(group, values, None, None)
}

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
    def: Option<&[i16]>,
    rep: Option<&[i16]>,
) -> Result<()> {
    let mut writer =
        group.next_column()?.ok_or_else(|| parquet::errors::ParquetError::General("no column left".into()))?;
    writer.typed::<T>().write_batch(values, def, rep)?;
    writer.close()
}
