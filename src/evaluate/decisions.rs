//! Decision files: the ad that each policy showed on each request.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::log::schema::AdType;
use crate::policy::Shown;
use crate::policy::witness::Ranking;

/// Writer of `DIR/<log name>/decisions.<policy>.tsv`, a row per request. Until all rows are there, `.unfinished` is appended to the name.
pub struct DecisionWriter {
    folder: PathBuf,
    /// Midnight of the day, Unix milliseconds.
    start_ms: u64,
    files: BTreeMap<String, BufWriter<File>>,
    paths: BTreeSet<PathBuf>,
}

impl DecisionWriter {
    pub fn create(dir: &Path, log: &str, start_ms: u64) -> anyhow::Result<Self> {
        let folder = dir.join(log);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { folder, start_ms, files: BTreeMap::new(), paths: BTreeSet::new() })
    }

    pub fn write(&mut self, policy: &str, shown: Shown) -> anyhow::Result<()> {
        if !self.files.contains_key(policy) {
            // A policy's name may come from a path.
            let name: String =
                policy.chars().map(|c| if c.is_alphanumeric() || "-_.:".contains(c) { c } else { '_' }).collect();
            let path = self.folder.join(format!("decisions.{name}.tsv"));
            ensure!(self.paths.insert(path.clone()), "two policies would share {}; rename one", path.display());
            let path = unfinished(&path);
            let mut file =
                BufWriter::new(File::create(&path).with_context(|| format!("cannot write {}", path.display()))?);
            writeln!(file, "request_id\tad_id\ttype\tts_ms\tbid\tprice\trunner_up\trunner_up_bid")?;
            self.files.insert(policy.to_owned(), file);
        }
        let file = self.files.get_mut(policy).expect("just made");
        let (ad, kind) = match shown.ad {
            Some((ad, AdType::Contract)) => (ad, "C"),
            Some((ad, AdType::Auction)) => (ad, "A"),
            None => (0, "-"),
        };
        write!(file, "{}\t{ad}\t{kind}\t{}", shown.request_id, self.start_ms + shown.offset)?;
        // Scores leave the program in eCPM units.
        match shown.ranking {
            None => writeln!(file, "\t-\t-\t-\t-")?,
            Some(Ranking { bid, price, runner_up }) => {
                write!(file, "\t{:.3}\t{:.3}", 1000.0 * bid, 1000.0 * price)?;
                match runner_up {
                    Some((ad, _, bid)) => writeln!(file, "\t{ad}\t{:.3}", 1000.0 * bid)?,
                    None => writeln!(file, "\t-\t-")?,
                }
            }
        }
        Ok(())
    }

    /// Gives the files their names.
    ///
    /// # Errors
    /// If the disk did not accept the last rows.
    pub fn finish(self) -> anyhow::Result<()> {
        for (_, mut file) in self.files {
            file.flush()?;
        }
        for path in self.paths {
            std::fs::rename(unfinished(&path), &path).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}
