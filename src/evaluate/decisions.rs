//! Decision files: what each policy showed on each request.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::log::schema::AdType;
use crate::policy::Shown;

/// Writes `DIR/<log name>/decisions.<policy>.tsv`, a row per request.
pub struct DecisionWriter {
    folder: PathBuf,
    files: BTreeMap<String, BufWriter<File>>,
    paths: BTreeSet<PathBuf>,
}

impl DecisionWriter {
    pub fn create(dir: &Path, log: &str) -> anyhow::Result<Self> {
        let folder = dir.join(log);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { folder, files: BTreeMap::new(), paths: BTreeSet::new() })
    }

    pub fn write(&mut self, policy: &str, shown: Shown) -> anyhow::Result<()> {
        if !self.files.contains_key(policy) {
            // A policy's name may come from a path.
            let name: String =
                policy.chars().map(|c| if c.is_alphanumeric() || "-_.:".contains(c) { c } else { '_' }).collect();
            let path = self.folder.join(format!("decisions.{name}.tsv"));
            ensure!(self.paths.insert(path.clone()), "two policies would share {}; rename one", path.display());
            let mut file =
                BufWriter::new(File::create(&path).with_context(|| format!("cannot write {}", path.display()))?);
            writeln!(file, "request_id\tad_id\ttype")?;
            self.files.insert(policy.to_owned(), file);
        }
        let file = self.files.get_mut(policy).expect("just made");
        match shown.ad {
            Some((ad, AdType::Contract)) => writeln!(file, "{}\t{ad}\tC", shown.request_id)?,
            Some((ad, AdType::Auction)) => writeln!(file, "{}\t{ad}\tA", shown.request_id)?,
            None => writeln!(file, "{}\t0\t-", shown.request_id)?,
        }
        Ok(())
    }

    /// Ends the files.
    ///
    /// # Errors
    /// A disk that did not take the last rows.
    pub fn finish(self) -> anyhow::Result<()> {
        for (_, mut file) in self.files {
            file.flush()?;
        }
        Ok(())
    }
}
