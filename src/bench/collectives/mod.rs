//! How fast ranks of one machine average their gradients, beside the MPI that is installed.
//!
//! Real processes, as in a run. Each round begins with a barrier; what is timed is the all-reduce of rank 0 behind it. Behind another
//! barrier its result is checked. With `nccl` rank K has GPU K, and NCCL averages in place of shared memory. Where `mpirun` and `mpicc`
//! are there, the same sizes are timed with MPI's own all-reduce, between the same number of processes, in the same run.

use std::fmt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::collective;
use crate::collective::nccl::ID_BYTES;
use crate::gpu::Device;
use crate::shm::{Control, Exchange, ExchangeShape, RunNames, Seat};

/// After this long a rank that does not take part is given up.
const PATIENCE: Duration = Duration::from_secs(20);
const MPI_PROGRAM: &str = include_str!("allreduce.c");

/// What to measure.
#[derive(Debug, Clone)]
pub struct CollectivesBench {
    pub ranks: Vec<usize>,
    pub bytes: usize,
    pub rounds: usize,
    /// Time MPI's own as well, where it is installed.
    pub mpi: bool,
    /// Average by NCCL.
    pub nccl: bool,
}

/// Measurements for one number of ranks.
#[derive(Debug, Clone, serde::Serialize)]
pub struct RanksReport {
    pub ranks: usize,
    pub bytes: usize,
    pub rounds: usize,
    /// Of the all-reduce, in rank 0.
    pub median_us: f64,
    pub p99_us: f64,
    /// Bytes of the vector over the median.
    pub bytes_per_second: f64,
    /// Of one float.
    pub latency_us: f64,
    /// Rounds with a wrong result.
    pub wrong: usize,
    /// Of MPI's own all-reduce, where it is installed.
    pub mpi_median_us: Option<f64>,
    pub mpi_latency_us: Option<f64>,
    /// MPI's median over ours: more than 1 where ours is faster.
    pub speed_beside_mpi: Option<f64>,
}

#[derive(Debug, Clone, serde::Serialize)]
pub struct CollectivesReport {
    pub runs: Vec<RanksReport>,
    /// Why MPI was not measured.
    pub mpi_missing: Option<String>,
}

impl fmt::Display for CollectivesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, run) in self.runs.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            write!(
                f,
                "{newline}{} ranks: {:.2} MB in {:.0} us (99th percentile {:.0}), {:.2} GB/s; one float in {:.1} us; {} wrong",
                run.ranks,
                run.bytes as f64 * 1e-6,
                run.median_us,
                run.p99_us,
                run.bytes_per_second * 1e-9,
                run.latency_us,
                run.wrong
            )?;
            if let (Some(median), Some(latency), Some(speed)) =
                (run.mpi_median_us, run.mpi_latency_us, run.speed_beside_mpi)
            {
                write!(f, "; MPI {median:.0} us, one float {latency:.1} us: ours is {speed:.2} x as fast")?;
            }
        }
        self.mpi_missing.as_ref().map_or(Ok(()), |why| write!(f, "\nMPI was not measured: {why}"))
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When shared memory is short, or a rank cannot be started or fails. A wrong result is not an error but a figure.
pub fn run(bench: &CollectivesBench) -> anyhow::Result<CollectivesReport> {
    let words = bench.bytes / size_of::<f32>();
    ensure!(words > 0 && bench.rounds > 0, "nothing to measure");
    if let (true, Some(most)) = (bench.nccl, bench.ranks.iter().max()) {
        // NCCL's library would panic without a driver.
        Device::untried("cuda", *most)?;
    }
    let folder = tempfile::tempdir()?;
    let mpi = if bench.mpi { compile(folder.path()) } else { Err("left out".to_owned()) };
    let mut report = CollectivesReport { runs: vec![], mpi_missing: mpi.as_ref().err().cloned() };
    for &ranks in &bench.ranks {
        let large = all_reduce(ranks, words, bench)?;
        let small = all_reduce(ranks, 1, bench)?;
        let mut run = RanksReport {
            ranks,
            bytes: words * size_of::<f32>(),
            rounds: bench.rounds,
            median_us: large.median() * 1e6,
            p99_us: large.p99() * 1e6,
            bytes_per_second: (words * size_of::<f32>()) as f64 / large.median(),
            latency_us: small.median() * 1e6,
            wrong: large.wrong + small.wrong,
            mpi_median_us: None,
            mpi_latency_us: None,
            speed_beside_mpi: None,
        };
        if let Ok(program) = &mpi {
            let [large, small] = [words, 1].map(|words| mpi_all_reduce(program, ranks, words, bench.rounds));
            match (large, small) {
                (Ok(large), Ok(small)) => {
                    (run.mpi_median_us, run.mpi_latency_us) = (Some(large * 1e6), Some(small * 1e6));
                    run.speed_beside_mpi = Some(large * 1e6 / run.median_us);
                }
                (Err(why), _) | (_, Err(why)) => report.mpi_missing = Some(format!("{why:#}")),
            }
        }
        report.runs.push(run);
    }
    Ok(report)
}

/// Rounds of one size: seconds of each, ascending, and how many had a wrong result.
struct Rounds {
    seconds: Vec<f64>,
    wrong: usize,
}

impl Rounds {
    fn median(&self) -> f64 {
        self.seconds[self.seconds.len() / 2]
    }

    fn p99(&self) -> f64 {
        self.seconds[(self.seconds.len() * 99 / 100).min(self.seconds.len() - 1)]
    }
}

fn all_reduce(ranks: usize, words: usize, bench: &CollectivesBench) -> anyhow::Result<Rounds> {
    let &CollectivesBench { rounds, nccl, .. } = bench;
    let names = RunNames::for_this_process("bench")?;
    // Its lock says that the segments are in use.
    let _control = Control::create(&names.part("control"))?;
    let name = names.part("exchange");
    let exchange = Arc::new(Exchange::create(&name, ExchangeShape::of_one_machine(ranks, words, ID_BYTES))?);
    let others = (1..ranks).map(|rank| Rank::spawn(&name, rank, rounds, nccl));
    let others: Vec<Rank> = others.collect::<anyhow::Result<_>>()?;
    let rounds = take_part(exchange.join(0, PATIENCE)?, words, rounds, nccl)?;
    others.into_iter().try_for_each(Rank::finish)?;
    Ok(rounds)
}

/// A rank's process.
///
/// # Errors
/// When the exchange cannot be opened or breaks.
pub fn rank(name: &str, rank: usize, rounds: usize, nccl: bool) -> anyhow::Result<()> {
    let exchange = Arc::new(Exchange::open(name)?);
    let words = exchange.shape().words;
    take_part(exchange.join(rank, PATIENCE)?, words, rounds, nccl)?;
    Ok(())
}

/// Warms up, and then averages as often as asked.
fn take_part(seat: Seat, words: usize, rounds: usize, nccl: bool) -> anyhow::Result<Rounds> {
    let (rank, ranks) = (seat.rank(), seat.ranks());
    let mut transport = collective::open(seat, nccl.then_some(rank))?;
    let mut values = vec![0.0f32; words];
    let mut found = Rounds { seconds: Vec::with_capacity(rounds), wrong: 0 };
    let mean = (ranks - 1) as f32 / 2.0;
    for round in 0..rounds + rounds / 4 {
        values.iter_mut().enumerate().for_each(|(i, value)| *value = (rank + i % 7) as f32);
        transport.exchange_all(&mut [], &[], &mut |_| {}, &|| {})?;
        let begun = Instant::now();
        transport.exchange_all(&mut values, &[], &mut |_| {}, &|| {})?;
        let seconds = begun.elapsed().as_secs_f64();
        // Where ranks share cores, a rank that is done must not check its values on the core that another one still needs.
        transport.exchange_all(&mut [], &[], &mut |_| {}, &|| {})?;
        if round >= rounds / 4 {
            found.seconds.push(seconds);
            let right = |(i, value): (usize, &f32)| (value - (i % 7) as f32 - mean).abs() < 1e-5;
            found.wrong += usize::from(!values.iter().enumerate().all(right));
        }
    }
    found.seconds.sort_by(f64::total_cmp);
    Ok(found)
}

/// Another rank's process; killed if it is still there when dropped.
struct Rank(Child);

impl Rank {
    fn spawn(exchange: &str, rank: usize, rounds: usize, nccl: bool) -> anyhow::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["child", "bench-rank", exchange, &rank.to_string(), &rounds.to_string()])
            .args(nccl.then_some("--nccl"))
            .spawn()
            .context("cannot start a rank")?;
        Ok(Self(child))
    }

    fn finish(mut self) -> anyhow::Result<()> {
        let status = self.0.wait()?;
        ensure!(status.success(), "a rank failed: {status}");
        Ok(())
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Both fail when it is over already, as they should.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Compiles the program that times MPI's own, or says why it cannot.
fn compile(folder: &Path) -> Result<std::path::PathBuf, String> {
    let (source, program) = (folder.join("allreduce.c"), folder.join("allreduce"));
    std::fs::write(&source, MPI_PROGRAM).map_err(|e| e.to_string())?;
    if Command::new("mpirun").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        return Err("there is no mpirun; on Debian install openmpi-bin and libopenmpi-dev".into());
    }
    match Command::new("mpicc").arg("-O3").arg("-o").arg(&program).arg(&source).output() {
        Err(_) => Err("there is no mpicc; on Debian install libopenmpi-dev".into()),
        Ok(output) if !output.status.success() => {
            Err(format!("mpicc failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
        Ok(_) => Ok(program),
    }
}

/// Median seconds of MPI's all-reduce.
fn mpi_all_reduce(program: &Path, ranks: usize, words: usize, rounds: usize) -> anyhow::Result<f64> {
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()])
        .arg(program)
        .args([words.to_string(), rounds.to_string()])
        .stdin(Stdio::null())
        .output()
        .context("cannot start mpirun")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "mpirun failed: {}", said.lines().next().unwrap_or("it says nothing"));
    String::from_utf8_lossy(&output.stdout).trim().parse().context("mpirun printed no time")
}
