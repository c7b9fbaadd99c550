//! Several sparse-parameter files made one, row by row: a base and what has changed since.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::file::{RowFileReader, RowFileWriter, RowLayout};
use super::marks::LastUse;
use super::table::HostTable;

/// A file with its next row.
struct Input {
    rows: RowFileReader,
    next: Option<u64>,
}

impl Input {
    fn advance(&mut self) -> anyhow::Result<()> {
        self.next = self.rows.read()?.map(|(id, _)| id);
        Ok(())
    }
}

/// Reads the rows of several files, ids ascending; where several hold a row, the last of them counts, and a row that is dropped there
/// is none. Holds one row of each in memory.
struct Merged {
    inputs: Vec<Input>,
    layout: RowLayout,
}

impl Merged {
    fn open(files: &[PathBuf]) -> anyhow::Result<Self> {
        let mut inputs = Vec::new();
        for path in files {
            let mut input = Input { rows: RowFileReader::open(path)?, next: None };
            input.advance()?;
            inputs.push(input);
        }
        let layouts = || inputs.iter().map(|input| input.rows.found.layout);
        let layout = layouts().next().context("nothing to merge")?;
        ensure!(layouts().all(|other| other == layout), "rows of different shapes");
        Ok(Self { inputs, layout })
    }

    /// Gives all rows to `take`.
    fn each(mut self, mut take: impl FnMut(u64, &[u32]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        while let Some(id) = self.inputs.iter().filter_map(|input| input.next).min() {
            let newest = self.inputs.iter().rposition(|input| input.next == Some(id)).expect("the smallest is there");
            let words = self.inputs[newest].rows.words();
            if !self.layout.marks || LastUse::of(&words[self.layout.words()..]).number > 0 {
                take(id, words)?;
            }
            for input in self.inputs.iter_mut().filter(|input| input.next == Some(id)) {
                input.advance()?;
            }
        }
        Ok(())
    }
}

/// Writes the rows of a base and of what has changed since to `out`. The caller renames. Returns the bytes written.
///
/// # Errors
/// A damaged file, files of different shapes, what the file system says.
pub fn merge(out: &Path, files: &[PathBuf]) -> anyhow::Result<u64> {
    let merged = Merged::open(files)?;
    let file = File::create(out).with_context(|| format!("cannot write {}", out.display()))?;
    let mut writer = RowFileWriter::begin(BufWriter::with_capacity(1 << 20, &file), merged.layout)?;
    merged.each(|id, words| Ok(writer.push(id, words)?))?;
    writer.finish()?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// Reads the rows of a base and of what has changed since into an empty table.
///
/// # Errors
/// As [`merge`], and a table of another shape or without room.
pub fn restore(table: &mut HostTable, files: &[PathBuf]) -> anyhow::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let (merged, shape) = (Merged::open(files)?, table.shape());
    let expected = RowLayout::from(shape);
    ensure!(merged.layout == expected, "rows of {:?}, the table has {expected:?}", merged.layout);
    merged.each(|id, words| {
        ensure!(table.load(id, words), "the table has room for {} rows; raise table.max_rows", shape.max_rows);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::file;
    use super::*;
    use crate::settings::RowOptimizer;

    type Rows = BTreeMap<u64, Vec<u32>>;

    fn write(path: &Path, rows: &Rows) {
        let layout = RowLayout { dim: 2, optimizer: RowOptimizer::Sgd, marks: false };
        file::write_to(File::create(path).unwrap(), layout, rows.iter().map(|(id, words)| (*id, &words[..]))).unwrap();
    }

    fn read(path: &Path) -> Rows {
        let mut reader = RowFileReader::open(path).unwrap();
        let mut rows = Rows::new();
        while let Some((id, words)) = reader.read().unwrap() {
            rows.insert(id, words.to_vec());
        }
        rows
    }

    proptest! {
        #[test]
        fn the_last_file_that_holds_a_row_counts(
            files in prop::collection::vec(prop::collection::btree_map(0u64..12, 0u8..100, 0..10), 1..5)
        ) {
            let folder = tempfile::tempdir().unwrap();
            let (mut expected, mut paths) = (Rows::new(), vec![]);
            for (number, rows) in files.iter().enumerate() {
                let rows: Rows = rows.iter().map(|(id, v)| (*id, vec![f32::from(*v).to_bits(), 0, number as u32])).collect();
                paths.push(folder.path().join(number.to_string()));
                write(&paths[number], &rows);
                expected.extend(rows);
            }
            let out = folder.path().join("out");
            merge(&out, &paths).unwrap();
            prop_assert_eq!(read(&out), expected);
        }
    }

    #[test]
    fn a_damaged_file_is_not_merged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        write(&path, &Rows::from([(1, vec![0, 0, 1]), (2, vec![0, 0, 1])]));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(merge(&folder.path().join("out"), &[path]).is_err());
    }
}
