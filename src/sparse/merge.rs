//! Several sparse-parameter files made one, row by row: a base and what has changed since.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::file::{RowFileReader, RowFileWriter};

/// A file with its next id.
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

/// Writes the rows of `files` to `out`; where several hold a row, the last of them counts. Holds one row of each in memory.
/// The caller renames. Returns the bytes written.
///
/// # Errors
/// A damaged file, files of different shapes, what the file system says.
pub fn merge(out: &Path, files: &[PathBuf]) -> anyhow::Result<u64> {
    let mut inputs = Vec::new();
    for path in files {
        let mut input = Input { rows: RowFileReader::open(path)?, next: None };
        input.advance()?;
        inputs.push(input);
    }
    let shapes = || inputs.iter().map(|input| (input.rows.found.dim, input.rows.found.optimizer));
    let (dim, optimizer) = shapes().next().context("nothing to merge")?;
    ensure!(shapes().all(|shape| shape == (dim, optimizer)), "rows of different shapes");
    let file = File::create(out).with_context(|| format!("cannot write {}", out.display()))?;
    let mut writer = RowFileWriter::begin(BufWriter::with_capacity(1 << 20, &file), dim, optimizer)?;
    while let Some(id) = inputs.iter().filter_map(|input| input.next).min() {
        let newest = inputs.iter().rposition(|input| input.next == Some(id)).expect("the smallest is there");
        writer.push(inputs[newest].rows.row())?;
        for input in inputs.iter_mut().filter(|input| input.next == Some(id)) {
            input.advance()?;
        }
    }
    writer.finish()?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
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
        let file = File::create(path).unwrap();
        file::write_to(file, 2, RowOptimizer::Sgd, rows.iter().map(|(id, words)| (*id, &words[..]))).unwrap();
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
