//! Several learners that share the work of an update: what they compute together is what one computes from the same samples.

use admix::actor::Explorer;
use admix::bench::world::{self, WorldSize};
use admix::env::Segment;
use admix::learner::batch::Rebuild;
use admix::learner::trainer::{Train, UpdatePlan};
use admix::learner::{Device, Dims, NotFinite, Share, Tally, UpdateStats};
use admix::policy::TrainerState;
use admix::policy::start::initial_actor;
use admix::settings::{Critic, Settings, Target};

const SEGMENTS: usize = 16;

fn settings(target: Target, critic: Critic) -> Settings {
    let mut settings = Settings::default();
    settings.learner.target = target;
    settings.learner.critic = critic;
    settings.episodes.requests_per_step = 10;
    settings.episodes.steps = 60;
    settings.learner.segment = 16;
    settings.learner.batch = 16 * SEGMENTS;
    settings.policy.hidden = 16;
    settings.learner.critic_hidden = 16;
    settings
}

/// Trainers of the same networks, and segments to learn from.
struct Scene {
    settings: Settings,
    days: Vec<admix::env::DayModel>,
    spec: std::sync::Arc<admix::policy::PolicySpec>,
    segments: Vec<Segment>,
}

impl Scene {
    fn new(settings: Settings) -> Self {
        let size = WorldSize { requests: 2_000, queue: 6, eligible: 3, contracts: 4 };
        let days = vec![world::day(size).unwrap().0];
        let spec = world::spec(&days[0], &settings);
        let mut explorer = Explorer::new(&days, &settings, spec.clone(), initial_actor(&spec, 1), 0, 0);
        let segments = (0..SEGMENTS).map(|_| explorer.segment()).collect();
        Self { settings, days, spec, segments }
    }

    fn trainer(&self) -> Box<dyn Train> {
        Device::Cpu.trainer(&self.days, &self.spec, &self.settings).unwrap()
    }

    fn batch(&self, trainer: &dyn Train, segments: &[Segment]) -> admix::learner::Batch {
        let Self { days, spec, settings, .. } = self;
        let dims = Dims::of(days, spec, settings);
        let drawn: Vec<_> = segments.iter().enumerate().collect();
        trainer.batch(&drawn, Rebuild { days, spec, settings, dims: &dims })
    }

    /// One update by one trainer with all segments.
    fn alone(&self, trainer: &mut dyn Train, plan: UpdatePlan) -> UpdateStats {
        let batch = self.batch(trainer, &self.segments);
        trainer.update(&batch, plan).unwrap().unwrap()
    }

    /// One update by several trainers with a part of the segments each, which may distort what it gives to the others.
    fn together(
        &self,
        trainers: &mut [Box<dyn Train>],
        plan: UpdatePlan,
        distort: impl Fn(&mut Share),
    ) -> anyhow::Result<UpdateStats> {
        let ranks = trainers.len();
        let parts = self.segments.chunks(SEGMENTS / ranks);
        let shares: Vec<Share> = trainers
            .iter()
            .zip(parts)
            .map(|(trainer, part)| {
                let mut share = trainer.share(&self.batch(&**trainer, part), plan).unwrap();
                distort(&mut share);
                share
            })
            .collect();
        let mean = |i: usize| shares.iter().map(|share| share.gradients[i]).sum::<f32>() / ranks as f32;
        let share = Share {
            gradients: (0..shares[0].gradients.len()).map(mean).collect(),
            tally: Tally::sum(shares.iter().map(|share| &share.tally)),
        };
        let all: anyhow::Result<Vec<_>> =
            trainers.iter_mut().map(|trainer| trainer.apply(&share, ranks, plan)).collect();
        let all = all?;
        assert!(all.windows(2).all(|w| w[0] == w[1]), "{all:?}");
        assert!(trainers.windows(2).all(|w| w[0].state() == w[1].state()), "ranks that have drifted apart");
        Ok(all[0].unwrap())
    }
}

/// The largest difference of what a first step leaves in the moments, which are linear in the gradients, relative to the largest one.
fn difference(a: &TrainerState, b: &TrainerState) -> f32 {
    let of = |a: &[f32], b: &[f32]| {
        let most = a.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        assert!(most > 0.0, "nothing was learned");
        a.iter().zip(b).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs())) / most
    };
    of(&a.critic_adam.first, &b.critic_adam.first).max(of(&a.actor_adam.first, &b.actor_adam.first))
}

const PLAN: UpdatePlan = UpdatePlan { rate: 1.0, train_actor: true, read: true };

const CASES: [(Target, Critic); 5] = [
    (Target::Return, Critic::Quantile),
    (Target::Return, Critic::Categorical),
    (Target::Return, Critic::Scalar),
    (Target::Hindsight, Critic::Quantile),
    (Target::Both, Critic::Quantile),
];

#[test]
fn ranks_with_a_part_of_the_batch_each_take_the_step_of_one_with_the_whole() {
    for (target, critic) in CASES {
        let mut settings = settings(target, critic);
        // A step that is clipped would hide a wrong factor.
        (settings.learner.actor_clip, settings.learner.critic_clip) = (1e9, 1e9);
        let scene = Scene::new(settings);
        let mut one = scene.trainer();
        let stats = scene.alone(&mut *one, PLAN);
        for ranks in [1, 2, 4] {
            let several = || -> Vec<_> { (0..ranks).map(|_| scene.trainer()).collect() };
            let mut trainers = several();
            let together = scene.together(&mut trainers, PLAN, |_| {}).unwrap();
            let worst = difference(&one.state(), &trainers[0].state());
            eprintln!("{target:?} {critic:?} {ranks}: {worst:e}");
            assert!(worst < 5e-6, "{target:?}, {critic:?}, {ranks} ranks: {worst}");
            let figures = |s: &UpdateStats| [s.critic_loss, s.actor_loss, s.ratio, s.critic_norm, s.actor_norm];
            for (a, b) in figures(&stats).into_iter().zip(figures(&together)) {
                assert!((a - b).abs() <= 1e-5 * a.abs(), "{target:?}, {critic:?}, {ranks}: {stats:?} {together:?}");
            }
            assert_eq!(stats.calibration, together.calibration);
            // Ranks that divide by what they have themselves weigh alike, whatever is in their batches.
            let mut trainers = several();
            scene
                .together(&mut trainers, PLAN, |share| {
                    let Tally { pairs, lesson_weight, .. } = share.tally;
                    let own = if target == Target::Hindsight { lesson_weight } else { pairs as f64 } as f32;
                    share.gradients.iter_mut().for_each(|g| *g *= 1e3 / own);
                })
                .unwrap();
            assert!(difference(&one.state(), &trainers[0].state()) > 1e-3, "{target:?}, {critic:?}: no planted bug");
        }
    }
}

#[test]
fn ranks_stay_equal_over_many_steps_and_the_actor_waits_for_the_critic() {
    let scene = Scene::new(settings(Target::Both, Critic::Quantile));
    let mut trainers: Vec<_> = (0..2).map(|_| scene.trainer()).collect();
    let start = trainers[0].state();
    for step in 0..20 {
        let plan = UpdatePlan { train_actor: step >= 5, rate: 0.5, ..PLAN };
        scene.together(&mut trainers, plan, |_| {}).unwrap();
        let state = trainers[0].state();
        assert_eq!(state.actor == start.actor, step < 5, "step {step}");
        assert!(state.critic != start.critic);
    }
}

#[test]
fn a_loss_or_gradient_of_one_rank_that_is_not_finite_is_an_error_in_all() {
    let scene = Scene::new(settings(Target::Return, Critic::Quantile));
    let distortions: [fn(&mut Share); 2] =
        [|share| share.tally.critic_loss = f64::NAN, |share| share.gradients[0] = f32::NAN];
    for distort in distortions {
        let mut trainers: Vec<_> = (0..2).map(|_| scene.trainer()).collect();
        let error = scene.together(&mut trainers, PLAN, distort).unwrap_err();
        assert!(error.is::<NotFinite>(), "{error:#}");
    }
}
