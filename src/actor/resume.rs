//! Serialised state of an explorer between two blocks.
//!
//! In lock-step a resumed run continues as if it had never stopped, so every actor's random stream and its unfinished episodes
//! are part of its blocks and of every snapshot. Everything that follows from a day and an episode's seed is recomputed.

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::env::{DayModel, Delay, Episode, Replay, RowSampler, State};
use crate::policy::{Replanner, ReplannerState, Teacher};
use crate::run::snapshot::RngState;

use super::explorer::{Explorer, Lessons, Runner, horizon};

#[derive(Serialize, Deserialize)]
struct ExplorerState {
    rng: RngState,
    turn: u64,
    runners: Vec<Option<RunnerState>>,
}

#[derive(Serialize, Deserialize)]
struct RunnerState {
    day: u16,
    episode: u64,
    /// Whether it replays the whole day, whatever its seed says.
    whole: bool,
    /// Row to be decided next.
    next: u64,
    state: State,
    replanner: Option<ReplannerState>,
    /// The teacher's last prices, and the time of its next lesson.
    lessons: Option<(Vec<f64>, u64)>,
}

impl<'a> Explorer<'a> {
    /// Serialises the explorer between two blocks.
    ///
    /// # Errors
    /// Within a segment, because a segment in progress is not serialised.
    pub fn save(&self) -> anyhow::Result<Vec<u8>> {
        ensure!(self.recording.is_none(), "an explorer within a segment cannot be saved");
        let runner = |runner: &Runner| {
            let mut rows = runner.rows.clone();
            RunnerState {
                day: runner.day as u16,
                episode: runner.replay.episode.seed,
                whole: runner.whole,
                next: rows.next().map_or(u64::MAX, |row| row as u64),
                state: runner.replay.state.clone(),
                replanner: runner.replanner.as_ref().map(Replanner::state),
                lessons: runner.lessons.as_ref().map(|l| (l.teacher.prices().to_vec(), l.next)),
            }
        };
        let state = ExplorerState {
            rng: RngState::of(&self.rng),
            turn: self.turn as u64,
            runners: self.runners.iter().map(|r| r.as_ref().map(runner)).collect(),
        };
        Ok(bincode::serde::encode_to_vec(&state, bincode::config::standard())?)
    }

    /// Resumes from the saved state of an explorer with the same settings.
    ///
    /// # Errors
    /// If the bytes are not an explorer, or one of other days or settings.
    pub fn resume(&mut self, saved: &[u8]) -> anyhow::Result<()> {
        const LIMIT: usize = 1 << 28;
        let config = bincode::config::standard().with_limit::<LIMIT>();
        let (state, _): (ExplorerState, usize) = bincode::serde::decode_from_slice(saved, config)?;
        ensure!(state.runners.len() == self.runners.len(), "an explorer with another number of episodes");
        ensure!((state.turn as usize) < self.runners.len(), "an explorer with an impossible turn");
        self.rng = state.rng.resume();
        self.turn = state.turn as usize;
        self.recording = None;
        for (i, runner) in state.runners.into_iter().enumerate() {
            self.runners[i] = runner.map(|r| self.runner(r)).transpose()?;
        }
        Ok(())
    }

    fn runner(&self, saved: RunnerState) -> anyhow::Result<Runner<'a>> {
        let days: &'a [DayModel] = self.days;
        let day = days.get(usize::from(saved.day)).context("an explorer of other days")?;
        let settings = &self.settings;
        let mut episode = Episode::draw(day, &settings.episodes, settings.requests_per_step(), saved.episode);
        if saved.whole {
            episode.replay_all();
        }
        ensure!(saved.state.fits(day.contracts.len()), "an explorer of other days");
        let mut rows = RowSampler::new(&episode, day).peekable();
        while rows.next_if(|&row| (row as u64) < saved.next).is_some() {}
        let delay = Delay::of_policy(&settings.policy, &settings.env).in_episode(episode.seed);
        let replay = Replay::resume(day, episode, delay, saved.state);
        let replanner_fits = saved.replanner.as_ref().is_none_or(|state| state.fits(day.contracts.len()));
        ensure!(replanner_fits, "an explorer of other days");
        let replanner = saved
            .replanner
            .map(|state| Replanner::resume(&replay, day.sample.clone(), horizon(day), &settings.policy, state));
        let lessons = saved.lessons.map(|(prices, next)| Lessons { teacher: Teacher::from_prices(prices), next });
        Ok(Runner { day: saved.day.into(), whole: saved.whole, replay, rows, replanner, lessons })
    }
}
