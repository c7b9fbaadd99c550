//! Whether parameters ever tear: publications at full speed under processes that read at full speed.
//!
//! Every word is a function of the version, so that a tear shows even if a checksum missed it.

use std::fmt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::shm::{Control, ParamCell, RunNames};

/// After this long without news a reader looks whether the run is still there.
const PATIENCE: Duration = Duration::from_millis(200);

/// What to measure.
#[derive(Debug, Clone)]
pub struct ParamsBench {
    pub publications: u64,
    /// Words of 4 bytes in each.
    pub words: usize,
    pub readers: usize,
}

impl Default for ParamsBench {
    fn default() -> Self {
        Self { publications: 1_000_000, words: 16 << 10, readers: 2 }
    }
}

/// What was measured.
#[derive(Debug, Clone, serde::Serialize)]
pub struct ParamsReport {
    pub publications: u64,
    pub words: usize,
    pub readers: usize,
    pub seconds: f64,
    pub publications_per_second: f64,
    /// Copies that readers took, all of them together.
    pub reads: u64,
    pub reads_per_second: f64,
    /// Reads that were overtaken at every attempt and came back with nothing.
    pub missed_reads: u64,
    /// Copies with a wrong checksum or wrong content.
    pub torn_reads: u64,
}

impl fmt::Display for ParamsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "params: {:.0} publications/s of {} words under {} readers with {:.0} reads/s; {} publications in {:.2} s, \
             {} reads, {} torn, {} overtaken",
            self.publications_per_second,
            self.words,
            self.readers,
            self.reads_per_second,
            self.publications,
            self.seconds,
            self.reads,
            self.torn_reads,
            self.missed_reads,
        )
    }
}

/// What one reader found; it prints this as JSON.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct Tally {
    reads: u64,
    missed: u64,
    torn: u64,
}

/// Runs the bench: publishes from this process while the readers read.
///
/// # Errors
/// When shared memory is short, or a reader cannot be started or fails. A tear is not an error but a figure.
pub fn run_params(opts: &ParamsBench) -> anyhow::Result<ParamsReport> {
    ensure!(opts.publications > 1 && opts.words > 0, "nothing to measure");
    let names = RunNames::for_this_process("bench")?;
    let control = Control::create(&names.part("control"))?;
    let name = names.part("params");
    let cell = ParamCell::create(&name, opts.words)?;
    let mut words = vec![0; opts.words];
    let mut publish = |version| {
        fill(version, &mut words);
        cell.publish(version, &words, &control.params)
    };
    // There is something to read from the start, so that readers are under way when it begins.
    publish(1)?;
    let readers = (0..opts.readers)
        .map(|n| Reader::spawn(&name, opts.publications, &control, n))
        .collect::<anyhow::Result<Vec<_>>>()?;

    let start = Instant::now();
    for version in 2..=opts.publications {
        publish(version)?;
    }
    let seconds = start.elapsed().as_secs_f64();

    let mut total = Tally::default();
    for reader in readers {
        let tally = reader.finish()?;
        total.reads += tally.reads;
        total.missed += tally.missed;
        total.torn += tally.torn;
    }
    Ok(ParamsReport {
        publications: opts.publications,
        words: opts.words,
        readers: opts.readers,
        seconds,
        publications_per_second: (opts.publications - 1) as f64 / seconds,
        reads: total.reads,
        reads_per_second: total.reads as f64 / seconds,
        missed_reads: total.missed,
        torn_reads: total.torn + cell.torn(),
    })
}

/// A reader's process: reads the cell `name` until it has seen version `last`, and prints its tally. It signs
/// in as actor `reader` once it has read something.
///
/// # Errors
/// When the cell cannot be opened or the publishing process has gone.
pub fn params_reader(name: &str, last: u64, reader: usize) -> anyhow::Result<()> {
    let (names, _) = RunNames::parse(name).context("not the name of a segment")?;
    let control = Control::open(&names.part("control"))?;
    let cell = ParamCell::open(name)?;
    let mut words = Vec::with_capacity(cell.capacity());
    let mut expected = vec![0; cell.capacity()];
    let (mut tally, mut version) = (Tally::default(), 0);
    while version < last {
        let seen = control.params.value();
        if cell.version() == version {
            control.params.wait(seen, PATIENCE);
            ensure!(names.is_alive(), "the publishing process has gone");
            continue;
        }
        let Some(read) = cell.read(&mut words) else {
            tally.missed += 1;
            continue;
        };
        fill(read, &mut expected);
        tally.torn += u64::from(words != expected || read < version);
        tally.reads += 1;
        version = read;
        control.actors[reader].param_version.set(version);
    }
    println!("{}", serde_json::to_string(&tally)?);
    Ok(())
}

/// The content of a version.
fn fill(version: u64, words: &mut [u32]) {
    let seed = (version as u32).wrapping_mul(0x9E37_79B1);
    for (i, word) in words.iter_mut().enumerate() {
        *word = seed ^ i as u32;
    }
}

/// A reading process; killed if it is still there when dropped.
struct Reader(Option<Child>);

impl Reader {
    /// Starts reader `number` and waits until it has read something.
    fn spawn(cell: &str, last: u64, control: &Control, number: usize) -> anyhow::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["child", "bench-params-reader", cell])
            .args([last.to_string(), number.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a reading process")?;
        let mut reader = Self(Some(child));
        while control.actors[number].param_version.get() == 0 {
            let ended = reader.0.as_mut().map(Child::try_wait).transpose()?;
            ensure!(ended.flatten().is_none(), "a reading process failed");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(reader)
    }

    fn finish(mut self) -> anyhow::Result<Tally> {
        let child = self.0.take().context("finished twice")?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "a reading process failed: {}", output.status);
        serde_json::from_slice(&output.stdout).context("a reading process printed no tally")
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // Both fail when it is over already, as they should.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
