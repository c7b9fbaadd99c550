//! The reader process: joins exposures to their requests and hands them to the trainer in blocks.
//!
//! Each of N readers takes every Nth exposure of each day. Its stream of blocks follows from the seed and its number alone. So
//! the successor of a dead reader, or a reader of a resumed run, makes the same blocks again and skips those that were handed over.
//! Exposures are shuffled within a window, which holds all days where they fit. With several ranks a block holds a batch of all of
//! them: each exposure goes to the rank that the hash of its request names, and every rank gets a shard of every block. The readers of a
//! node make the blocks of the whole job and hand over the shards of their node's ranks.

use std::time::Duration;

use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

use crate::collective::shares::Shares;
use crate::nodes::World;
use crate::run::value_run::{Prepared, ValueSegments, compile_options};
use crate::run::{RunDirectory, failpoint};
use crate::settings::{Configuration as _, RankSync, ValueSettings};
use crate::shm::control::{ProcessSlot, STOP_ALL, STOP_LEARNING};
use crate::shm::{Control, Overflow, ProcessKind, RingWriter, SampleRing, ahead, huge, prefetch, prefetch_lines};
use crate::sparse::index::mix;
use crate::values::join::{Share, join_watched};
use crate::values::{Block, Fields, Sample};

const NAP: Duration = Duration::from_millis(100);

/// A sample, with all that is asked for on its way: each exposure of a shuffled window is somewhere else in memory.
#[derive(Clone, Copy)]
struct Exposure {
    sample: Sample,
    /// The rank that it goes to.
    rank: u16,
    /// Its training day, as its number in the list of days.
    day: u16,
}

/// Exposures with their ids.
#[derive(Default)]
struct Window {
    exposures: Vec<Exposure>,
    ids: Vec<u64>,
}

impl Window {
    fn ids(&self, i: usize, fields: usize) -> &[u64] {
        &self.ids[i * fields..(i + 1) * fields]
    }

    /// Starts to load an exposure.
    fn load_ahead(&self, i: usize, fields: usize) {
        let exposure = &self.exposures[i];
        prefetch(&exposure.sample);
        prefetch(&exposure.day);
        prefetch_lines(self.ids(i, fields));
    }
}

/// Runs reader `id` until it has given all passes or the run stops.
///
/// # Errors
/// A log that cannot be used.
pub fn run(directory: &RunDirectory, prefix: &str, id: usize) -> anyhow::Result<()> {
    let settings = ValueSettings::read_resolved(&directory.config())?;
    let world = Prepared::read(directory)?.world(&settings);
    let segments = ValueSegments::open_for_reader(prefix, id, world.local)?;
    let slot = &segments.control.processes[id];
    slot.sign_in(ProcessKind::Actor);
    let mut writers = segments.rings.iter().map(SampleRing::writer).collect::<Result<Vec<_>, _>>()?;
    let mut stream = Stream {
        settings: &settings,
        world,
        fields: Fields::parse(&settings.values.fields)?,
        shares: Shares::of(&settings, world.ranks),
        control: &segments.control,
        id,
        slot,
        writers: &mut writers,
        in_step: world.ranks > 1 && settings.ranks.sync == RankSync::Step,
        stops_at: if world.ranks > 1 && settings.ranks.sync == RankSync::Overlap { STOP_ALL } else { STOP_LEARNING },
        // What was handed over, by this process's predecessors or before the snapshot.
        first: segments.control.actors[id].param_version.get(),
        next: 0,
    };
    stream.run()
}

struct Stream<'a> {
    settings: &'a ValueSettings,
    world: World,
    fields: Fields,
    shares: Shares,
    control: &'a Control,
    id: usize,
    slot: &'a ProcessSlot,
    /// One for each rank of this node.
    writers: &'a mut [RingWriter],
    /// Whether there are several ranks, and they train in step.
    in_step: bool,
    /// Ranks that overlap need blocks until they have met.
    stops_at: u32,
    /// Blocks before this one were handed over.
    first: u64,
    /// Number of the next block.
    next: u64,
}

impl Stream<'_> {
    fn run(&mut self) -> anyhow::Result<()> {
        // All of the reader's exposures, where they fit into one window: then the tables are read once.
        let mut whole = None;
        for epoch in 0..self.settings.values.epochs {
            if !self.pass(epoch, &mut whole)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn rng(&self, epoch: u64, window: u64) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.settings.run.seed);
        rng.set_stream((1 << 63) | ((self.id as u64) << 48) | (epoch << 24) | window);
        rng
    }

    /// Gives one pass; false when the run stops.
    fn pass(&mut self, epoch: u64, whole: &mut Option<Window>) -> anyhow::Result<bool> {
        let v = &self.settings.values;
        if let Some(window) = whole {
            return self.give(window, epoch, 0, true).map(|left| left.is_some());
        }
        let (mut window, mut number) = (Window::default(), 0);
        for (day, dir) in v.train.iter().enumerate() {
            let share = Share { part: self.id as u64, parts: v.readers as u64 };
            let joined = join_watched(dir, compile_options(self.settings), &self.fields, share, |rows| {
                self.slot.beat();
                self.control.actors[self.id].rows_read.add(rows);
            })?;
            let samples = joined.samples.into_iter().zip(&joined.requests);
            window.exposures.extend(samples.map(|(sample, &request)| {
                let rank = if self.world.ranks > 1 { self.shares.rank_of(mix(request)) } else { 0 };
                Exposure { sample, rank: rank as u16, day: day as u16 }
            }));
            window.ids.extend(joined.ids);
            let last = day + 1 == v.train.len();
            if last && number == 0 && window.exposures.len() <= v.shuffle {
                let whole = whole.insert(window);
                return self.give(whole, epoch, 0, true).map(|left| left.is_some());
            }
            if last || window.exposures.len() > v.shuffle {
                match self.give(&window, epoch, number, last)? {
                    Some(left) => window = left,
                    None => return Ok(false),
                }
                number += 1;
            }
        }
        Ok(true)
    }

    /// Shuffles a window and gives it in blocks; what makes no whole block is returned, unless it is the last of the pass. `None`
    /// when the run stops.
    fn give(&mut self, window: &Window, epoch: u64, number: u64, last: bool) -> anyhow::Result<Option<Window>> {
        let (World { ranks, first, local }, fields) = (self.world, self.fields.len());
        let batch = self.settings.values.batch * ranks;
        huge::collapse(&window.exposures);
        huge::collapse(&window.ids);
        let mut order: Vec<usize> = (0..window.exposures.len()).collect();
        order.shuffle(&mut self.rng(epoch, number));
        let whole = if last { order.len() } else { order.len() / batch * batch };
        let mut shards =
            vec![Block { ranks: if ranks > 1 { ranks as u64 } else { 0 }, epoch, ..Block::default() }; local];
        // A pass without samples still ends.
        let blocks = whole.div_ceil(batch).max(usize::from(last));
        for b in 0..blocks {
            let number = self.next;
            self.next += 1;
            if number < self.first {
                continue;
            }
            // Ranks in step wait until their rings are full. A block that is made before there is room would use their cores while they compute.
            if self.in_step {
                (0..local).for_each(|rank| self.wait_for_room(rank));
            }
            let ends_epoch = last && b + 1 == blocks;
            let samples = &order[b * batch..((b + 1) * batch).min(whole)];
            for shard in &mut shards {
                shard.clear();
                (shard.number, shard.ends_epoch, shard.whole) = (number, ends_epoch, samples.len() as u64);
            }
            for (n, &i) in samples.iter().enumerate() {
                samples[ahead(n, samples.len())].iter().for_each(|&later| window.load_ahead(later, fields));
                let Exposure { sample, rank, day } = &window.exposures[i];
                let place = usize::from(*rank).checked_sub(first);
                if let Some(shard) = place.and_then(|place| shards.get_mut(place)) {
                    shard.push(sample, window.ids(i, fields), self.settings.training_weight());
                    if self.settings.table.keep_days > 0 {
                        shard.day.push(*day);
                    }
                }
            }
            for (rank, shard) in shards.iter().enumerate() {
                if !self.hand_over(rank, shard)? {
                    return Ok(None);
                }
            }
            self.control.actors[self.id].param_version.set(number + 1);
        }
        let mut left = Window::default();
        for &i in &order[whole..] {
            left.exposures.push(window.exposures[i]);
            left.ids.extend_from_slice(window.ids(i, fields));
        }
        Ok(Some(left))
    }

    /// Waits for a region of a rank's ring and writes its shard of a block into it; false when the run stops.
    fn hand_over(&mut self, rank: usize, block: &Block) -> anyhow::Result<bool> {
        loop {
            self.slot.beat();
            if self.stops() {
                return Ok(false);
            }
            if let Some(mut region) = self.writers[rank].claim(block.len() as u32, Overflow::Wait) {
                failpoint::reached("reader.claimed");
                let len = block.encode(region.payload())?;
                region.commit(len, 0, &self.control.data);
                failpoint::reached("reader.committed");
                self.control.actors[self.id].steps.add(block.len() as u64);
                return Ok(true);
            }
            self.wait_for_room(rank);
        }
    }

    fn stops(&self) -> bool {
        self.control.stop_level() >= self.stops_at
    }

    /// Waits, if a rank's ring is full, until it is mostly free or the run stops. Ranks wait for the one whose core a reader uses: they wait
    /// less often, if readers work in bursts.
    fn wait_for_room(&self, rank: usize) {
        let ring = self.writers[rank].ring();
        if !ring.is_full() {
            return;
        }
        loop {
            let seen = ring.space().value();
            if ring.is_mostly_free() || self.stops() {
                return;
            }
            ring.space().wait(seen, NAP);
            self.slot.beat();
        }
    }
}
