//! Lessons of one world.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::actor::Explorer;
use crate::env::{DayModel, Vocabulary};
use crate::learner::hindsight::{self, LessonRows};
use crate::log::{self, CompileOptions};
use crate::plan::{DayVolume, Plan, Tuned, VolumeModel};
use crate::policy::PolicySpec;
use crate::policy::net::HostNet;
use crate::settings::Settings;
use crate::synth::{self, WorldSettings};

/// Maximum number of a world's days to plan from, and number of days to play.
const PLANNED: u32 = 3;
const PLAYED: u32 = 4;
/// Number of requests of the plan's sample from which episodes solve their prices.
const SAMPLE: usize = 4000;
/// Longest feedback delay of a world, seconds; two worlds in five have no delay.
const LONGEST_DELAY_S: f64 = 2700.0;

/// A world to be played.
pub struct World<'a> {
    /// World file that it is drawn from.
    pub world: &'a WorldSettings,
    pub seed: u64,
    /// Number of episodes to play.
    pub episodes: usize,
    /// Folder for the world's temporary files.
    pub scratch: &'a Path,
}

impl World<'_> {
    /// Generates the world, plans from one to three of its days and plays the days after them.
    pub fn play(&self, settings: &Settings, spec: &Arc<PolicySpec>) -> anyhow::Result<(LessonRows, Plan)> {
        let folder = tempfile::tempdir_in(self.scratch)?;
        synth::generate(self.world, folder.path(), PLANNED + PLAYED, self.seed, &|_| {})?;
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut settings = settings.clone();
        settings.run.seed = self.seed;
        let planned = [1, 2, 3, 3][rng.random_range(0..4)];
        settings.env.feedback_delay_s = (LONGEST_DELAY_S * (rng.random_range(-2.0..3.0f64) / 3.0)).max(0.0);
        let dirs = |days: std::ops::Range<u32>| -> Vec<PathBuf> {
            days.map(|day| folder.path().join(format!("day-{day}"))).collect()
        };
        let training = dirs(PLANNED - planned..PLANNED);
        let options = CompileOptions::default();
        let logs = training.iter().map(|dir| log::open(dir, options)).collect::<Result<Vec<_>, _>>()?;
        let logs: Vec<_> = logs.iter().collect();
        let mut plan = Plan::from_days(&logs, settings.env.rate_seed)?;
        plan.volume = Some(Arc::new(VolumeModel::fit(&DayVolume::of_days(&training, &logs)?)));
        // Nothing tuned is used.
        plan.tuned = Some(Tuned::default());
        let vocabulary = Arc::new(Vocabulary::default());
        let mut days = Vec::new();
        for dir in dirs(PLANNED..PLANNED + PLAYED) {
            let mut day = DayModel::new(&dir, log::open(&dir, options)?, &plan, vocabulary.clone())?;
            day.sample = Arc::new(plan.sample.at_most(SAMPLE));
            days.push(day);
        }
        let start = vec![0.0; spec.actor_shape().len()];
        let mut explorer = Explorer::new(&days, &settings, spec.clone(), start, 0, 0);
        let mut rows = LessonRows::default();
        let mut episodes = 0;
        while episodes < self.episodes {
            let segment = explorer.segment();
            episodes += usize::from(segment.next.is_none());
            segment.lessons.iter().for_each(|lesson| rows.push(lesson));
        }
        Ok((rows, plan))
    }
}

/// Returns the loss of bids on rows.
pub fn loss(spec: &PolicySpec, actor: &[f32], rows: &LessonRows) -> f64 {
    let mut outputs = vec![0.0; rows.len()];
    HostNet::new(spec.actor_shape(), actor.to_vec()).forward(&rows.features, &rows.ids, &mut outputs);
    hindsight::bids(rows, &outputs, &rows.labels, 0.0, rows.per_weight(), &mut vec![0.0; rows.len()])
}
