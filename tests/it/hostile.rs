//! Hostile bytes in everything that is read back: policy and plan files, compiled logs, log tables (text, Parquet, archives,
//! sparse files), blocks, shared memory,
//! flight recordings, run directories. No panic, no allocation beyond a stated bound, and what is accepted can be used.
//!
//! Valid inputs made by the program itself are mutated, the same way for the same seed; inputs that once found something
//! lie in `tests/corpus/<target>/` and come first. `scripts/fuzz` runs the same for longer. Environment:
//!
//! | variable | meaning |
//! |---|---|
//! | `ADMIX_FUZZ_ITERATIONS` | mutants of each target; default 1,500 |
//! | `ADMIX_FUZZ_SEED` | seed of the mutations; default 1 |
//! | `ADMIX_FUZZ_INPUT` | run this file alone, one that a failure has written or that lies in the corpus |
//! | `ADMIX_FUZZ_KEEP` | write each input before it runs, for failures that end the process |

mod files;
mod gauge;
mod memory;
mod mutate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use twox_hash::XxHash3_64;

/// What became of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Refused,
    Accepted,
}

/// What is held against mutants.
struct Target<'a> {
    name: &'static str,
    /// Valid inputs.
    seeds: Vec<Vec<u8>>,
    /// Bytes that reading may hold at a time: so many, and so many for each byte of the input.
    most: (usize, usize),
    /// Of the configured number of mutants, one in so many: for slow readers.
    one_in: u64,
    /// Makes a mutant pass outer checks, such as a checksum, or leaves it as it is.
    forge: fn(&mut Vec<u8>),
    /// Reads an input; only this is measured.
    read: &'a mut dyn FnMut(&[u8]) -> Verdict,
    /// Uses what was read last.
    used: &'a mut dyn FnMut(),
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hostile");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

impl Target<'_> {
    /// Runs every input; `false` where a single one was asked for.
    fn run(mut self) -> bool {
        if let Some(path) = std::env::var_os("ADMIX_FUZZ_INPUT").map(PathBuf::from) {
            if self.wrote(&path) {
                self.one(&std::fs::read(path).unwrap());
            }
            return false;
        }
        let seeds = std::mem::take(&mut self.seeds);
        let mut pool = seeds.clone();
        for seed in &seeds {
            assert_eq!(self.one(seed), Verdict::Accepted, "{}: a valid input is refused", self.name);
        }
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(self.name);
        let mut kept: Vec<PathBuf> =
            std::fs::read_dir(corpus).into_iter().flatten().map(|e| e.unwrap().path()).collect();
        kept.sort();
        for path in &kept {
            let bytes = std::fs::read(path).unwrap();
            self.one(&bytes);
            pool.push(bytes);
        }
        let mut rng = ChaCha8Rng::seed_from_u64(variable("ADMIX_FUZZ_SEED").unwrap_or(1));
        let mutants = variable("ADMIX_FUZZ_ITERATIONS").unwrap_or(1_500).div_ceil(self.one_in);
        let mut accepted = 0;
        for _ in 0..mutants {
            let mut bytes = pool[rng.random_range(0..pool.len())].clone();
            mutate::mutate(&mut rng, &mut bytes, &pool);
            if rng.random_bool(0.7) {
                (self.forge)(&mut bytes);
            }
            if self.one(&bytes) == Verdict::Accepted {
                accepted += 1;
                // What is accepted is mutated further, so that changes add up.
                match pool.len() {
                    0..64 => pool.push(bytes),
                    _ => {
                        let at = rng.random_range(seeds.len()..64);
                        pool[at] = bytes;
                    }
                }
            }
        }
        eprintln!("{}: {mutants} mutants of {} inputs, {accepted} accepted", self.name, seeds.len() + kept.len());
        assert!(accepted < mutants, "{}: nothing is refused", self.name);
        true
    }

    /// Whether a file is an input of this target, by where it lies or what it is called.
    fn wrote(&self, path: &Path) -> bool {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let rest = file.strip_prefix(self.name);
        let hash = |rest: &str| rest.len() == 17 && rest.starts_with('-');
        path.parent().is_some_and(|folder| folder.ends_with(self.name)) || rest.is_some_and(|r| r == ".last" || hash(r))
    }

    fn one(&mut self, bytes: &[u8]) -> Verdict {
        let last = folder().join(format!("{}.last", self.name));
        let keep = std::env::var_os("ADMIX_FUZZ_KEEP").is_some();
        if keep {
            std::fs::write(&last, bytes).unwrap();
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let (verdict, peak) = gauge::peak(|| (self.read)(bytes));
            let most = self.most.0 + self.most.1 * bytes.len();
            assert!(peak <= most, "held {peak} bytes for an input of {}; at most {most} are allowed", bytes.len());
            if verdict == Verdict::Accepted {
                (self.used)();
            }
            verdict
        }));
        if keep {
            std::fs::remove_file(&last).unwrap();
        }
        outcome.unwrap_or_else(|cause| {
            let said = cause.downcast_ref::<String>().cloned();
            let said = said.or_else(|| cause.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default();
            let path = folder().join(format!("{}-{:016x}", self.name, XxHash3_64::oneshot(bytes)));
            std::fs::write(&path, bytes).unwrap();
            panic!(
                "{}: {said}\nThe input is {path}. Again: ADMIX_FUZZ_INPUT={path} cargo test --release --test it hostile::\n\
                 Once mended, keep it in tests/corpus/{}/",
                self.name,
                self.name,
                path = path.display(),
            )
        })
    }
}
