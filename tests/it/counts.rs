//! A scorer counts its choices and what was really shown. Started again, it goes on from its counts.

use std::collections::BTreeMap;

use admix::bench::score::jsonl;
use admix::log::schema::{AdType, ControlRow, DAY_MS, QueueEntry, TrackRow};
use admix::score::{Exposure, Heard, Restored, ScoreOptions, Scorer};

use super::score::{DELAYED, decide, files, run_score, setting};

/// Decides requests until so many contracts were chosen; returns their exposures.
fn contracts_shown(scorer: &mut Scorer, rows: &[TrackRow], most: usize) -> Vec<Exposure> {
    let decided = rows.iter().filter_map(|row| match decide(scorer, row).chosen {
        Some((ad_id, AdType::Contract)) => Some(Exposure { request_id: row.request_id, ad_id, ts_ms: row.ts_ms }),
        _ => None,
    });
    decided.take(most).collect()
}

/// Impressions of all contracts: delivered, and observed by the policy.
fn total(scorer: &Scorer) -> (f64, f64) {
    scorer.deliveries().fold((0.0, 0.0), |(d, o), (_, delivered, observed)| (d + delivered, o + observed))
}

/// Lets the day go by: a request at its end, on which nothing may be shown.
fn until_the_end(scorer: &mut Scorer, rows: &[TrackRow]) {
    let mut last = rows.last().unwrap().clone();
    (last.request_id, last.ts_ms) = (u64::MAX - 1, scorer.day().end_ms() - 1);
    last.queue.iter_mut().for_each(|e| e.filter = 1);
    assert_eq!(decide(scorer, &last).chosen, None);
}

#[test]
fn exposures_confirm_correct_and_take_back() {
    let setting = setting();
    let rows = setting.rows();
    let options = ScoreOptions { exposures: true, confirm_within_s: Some(20_000.0), ..ScoreOptions::default() };
    let mut scorer = setting.scorer("contract-first", options);
    let shown = contracts_shown(&mut scorer, &rows, 3);
    assert_eq!(total(&scorer), (3.0, 0.0), "nothing is confirmed");
    assert_eq!(scorer.confirm(shown[0]), Heard::News);
    assert_eq!(scorer.confirm(shown[0]), Heard::Repeated);
    assert_eq!(total(&scorer), (3.0, 1.0));
    // An auction ad was shown instead.
    assert_eq!(scorer.confirm(Exposure { ad_id: 1, ..shown[1] }), Heard::News);
    assert_eq!(total(&scorer), (2.0, 1.0));
    // Another server's display of a contract.
    let foreign = Exposure { request_id: u64::MAX, ..shown[0] };
    assert_eq!([0; 2].map(|_| scorer.confirm(foreign)), [Heard::News, Heard::Repeated]);
    assert_eq!(total(&scorer), (3.0, 2.0));
    // An auction ad of a request that nobody knows, and a contract on another day.
    let (unknown, yesterday) = (u64::MAX - 7, shown[0].ts_ms - DAY_MS);
    assert_eq!(scorer.confirm(Exposure { request_id: unknown, ad_id: 1, ..shown[0] }), Heard::Unknown);
    let late = Exposure { request_id: unknown - 1, ts_ms: yesterday, ..shown[0] };
    assert_eq!(scorer.confirm(late), Heard::OtherDay);
    assert_eq!(total(&scorer), (3.0, 2.0));
    let mut again = setting.scorer("contract-first", options);
    again.restore(&scorer.save()).unwrap();
    assert_eq!(again.confirm(foreign), Heard::Repeated, "what was confirmed survives");
    // The third is never confirmed: hours later it is taken back.
    until_the_end(&mut scorer, &rows);
    assert_eq!(total(&scorer), (2.0, 2.0));
}

/// An exposure that was said again after `--confirm-within` counted a second time, and one that came late counted without its click rate.
#[test]
fn an_exposure_counts_once_however_late_it_comes_or_is_said_again() {
    let setting = setting();
    let rows = setting.rows();
    let options = ScoreOptions { exposures: true, confirm_within_s: Some(60.0), ..ScoreOptions::default() };
    let mut scorer = setting.scorer("contract-first", options);
    let shown = contracts_shown(&mut scorer, &rows, 2);
    assert_eq!(scorer.confirm(shown[0]), Heard::News);
    until_the_end(&mut scorer, &rows);
    assert_eq!(total(&scorer), (1.0, 1.0), "the second was taken back");
    let mut again = setting.scorer("contract-first", options);
    again.restore(&scorer.counts(100).to_bytes()).unwrap();
    for mut scorer in [scorer, again] {
        assert_eq!(shown.iter().map(|e| scorer.confirm(*e)).collect::<Vec<_>>(), [Heard::Repeated, Heard::News]);
        assert_eq!(total(&scorer), (2.0, 2.0), "the second was shown after all");
        assert_eq!(scorer.confirm(shown[1]), Heard::Repeated);
        assert_eq!(total(&scorer), (2.0, 2.0));
    }
}

/// A restart with `--confirm-within` took back what had counted as shown; after one without it, open choices were never observed.
#[test]
fn counts_survive_a_restart_that_adds_or_drops_confirm_within() {
    let setting = setting();
    let rows = setting.rows();
    let plain = ScoreOptions { exposures: true, ..DELAYED };
    let confirming = ScoreOptions { confirm_within_s: Some(20_000.0), ..plain };
    for (before, after) in [(plain, plain), (plain, confirming), (confirming, plain), (confirming, confirming)] {
        let mut first = setting.scorer("contract-first", before);
        let shown = contracts_shown(&mut first, &rows, 6);
        let other = |exposure: Exposure| Exposure { ad_id: 1, ..exposure };
        assert_eq!(first.confirm(shown[0]), Heard::News);
        assert_eq!(first.confirm(other(shown[1])), Heard::News);
        for saved in [first.save(), first.counts(100).to_bytes(), first.counts(2).to_bytes()] {
            let again = || {
                let mut scorer = setting.scorer("contract-first", after);
                assert!(scorer.restore(&saved).unwrap().goes_on);
                assert!(scorer.deliveries().all(|(_, delivered, observed)| observed <= delivered));
                scorer
            };
            let (mut silent, mut told) = (again(), again());
            if (before, after) != (confirming, confirming) {
                until_the_end(&mut silent, &rows);
                assert_eq!(total(&silent), (5.0, 5.0), "nothing is taken back that counted as shown");
            }
            for exposure in &shown[..5] {
                told.confirm(*exposure);
            }
            assert_eq!(told.confirm(other(shown[5])), Heard::News);
            assert_eq!(told.confirm(shown[5]), Heard::Repeated);
            until_the_end(&mut told, &rows);
            assert_eq!(total(&told), (4.0, 4.0));
        }
    }
}

#[test]
fn a_choice_that_was_taken_back_counts_when_it_is_confirmed_after_a_restart_without_confirm_within() {
    let setting = setting();
    let rows = setting.rows();
    let plain = ScoreOptions { exposures: true, ..ScoreOptions::default() };
    let mut first = setting.scorer("contract-first", ScoreOptions { confirm_within_s: Some(60.0), ..plain });
    let shown = contracts_shown(&mut first, &rows, 2);
    until_the_end(&mut first, &rows);
    assert_eq!(total(&first), (0.0, 0.0));
    let mut again = setting.scorer("contract-first", plain);
    again.restore(&first.save()).unwrap();
    assert_eq!(total(&again), (0.0, 0.0));
    assert_eq!(again.confirm(shown[1]), Heard::News);
    assert_eq!(total(&again), (1.0, 1.0));
}

/// An exposure of a contract that had left the control table passed for a repeated one.
#[test]
fn an_exposure_of_a_contract_that_is_gone_is_heard_once() {
    let setting = setting();
    let options = ScoreOptions { exposures: true, ..ScoreOptions::default() };
    let mut scorer = setting.scorer("contract-first", options);
    let shown = contracts_shown(&mut scorer, &setting.rows(), 2);
    let mut day = setting.served();
    day.contracts.retain(|contract| contract.ad_id != shown[0].ad_id);
    let mut next = Scorer::new(&day, &setting.policy("contract-first"), options).unwrap();
    next.restore(&scorer.save()).unwrap();
    let before = total(&next);
    assert_eq!([0; 2].map(|_| next.confirm(shown[0])), [Heard::Unknown, Heard::Repeated]);
    assert_eq!(total(&next), before);
}

#[test]
fn exposures_do_not_move_a_stateless_scorer() {
    let setting = setting();
    let mut scorer = setting.scorer("pid", ScoreOptions { stateless: true, exposures: true, ..DELAYED });
    let saved = scorer.save();
    let ad_id = setting.served().contracts[0].ad_id;
    let exposure = Exposure { request_id: 1, ad_id, ts_ms: setting.rows()[0].ts_ms };
    assert_eq!(scorer.confirm(exposure), Heard::Unknown);
    assert!(scorer.save() == saved);
}

/// What the policy had observed of the contract was -1 until the delay had passed.
#[test]
fn a_choice_that_is_corrected_before_it_is_observed_is_never_observed() {
    let setting = setting();
    let rows = setting.rows();
    let mut scorer = setting.scorer("contract-first", ScoreOptions { exposures: true, ..DELAYED });
    let shown = contracts_shown(&mut scorer, &rows, 1);
    assert_eq!(total(&scorer), (1.0, 0.0));
    assert_eq!(scorer.confirm(Exposure { ad_id: 1, ..shown[0] }), Heard::News);
    assert!(scorer.deliveries().all(|(_, delivered, observed)| (delivered, observed) == (0.0, 0.0)));
    until_the_end(&mut scorer, &rows);
    assert!(scorer.deliveries().all(|(_, delivered, observed)| (delivered, observed) == (0.0, 0.0)));
}

/// A server saves its newest choices only. Those before them were counted as delivered and never as observed.
#[test]
fn choices_that_a_saved_state_has_forgotten_count_as_shown() {
    let setting = setting();
    let options = ScoreOptions { exposures: true, confirm_within_s: Some(80_000.0), ..ScoreOptions::default() };
    let mut scorer = setting.scorer("contract-first", options);
    let shown = contracts_shown(&mut scorer, &setting.rows()[..200], usize::MAX);
    assert_eq!(total(&scorer), (shown.len() as f64, 0.0));
    assert!(shown.len() > 50);
    // One in three is confirmed, the newest among them.
    let confirmed: Vec<Exposure> = shown.iter().copied().rev().step_by(3).collect();
    confirmed.iter().for_each(|exposure| assert_eq!(scorer.confirm(*exposure), Heard::News));
    let saved = scorer.counts(20).to_bytes();
    let mut again = setting.scorer("contract-first", options);
    again.restore(&saved).unwrap();
    let kept = shown.iter().filter(|e| again.confirm(**e) == Heard::News).count();
    assert!(kept > 0 && kept < 20, "{kept} are open still");
    assert_eq!(total(&again), (shown.len() as f64, shown.len() as f64));
}

/// Counts began at 0 when the control table was changed during the day.
#[test]
fn contracts_keep_their_counts_when_others_come_and_go() {
    let setting = setting();
    let rows = setting.rows();
    for name in ["pid", "by-contract", "receding-horizon"] {
        let mut scorer = setting.scorer(name, DELAYED);
        rows[..rows.len() / 2].iter().for_each(|row| drop(decide(&mut scorer, row)));
        let before: BTreeMap<u64, (f64, f64)> = scorer.deliveries().map(|(ad, d, o)| (ad, (d, o))).collect();
        let mut day = setting.served();
        let gone = day.contracts.remove(1);
        day.contracts.reverse();
        day.contracts.push(ControlRow { ad_id: 987_654, ..gone.clone() });
        let mut next = Scorer::new(&day, &setting.policy(name), DELAYED).unwrap();
        let restored = next.restore(&scorer.save()).unwrap();
        assert_eq!(restored, Restored { goes_on: false, new_contracts: 1, gone_contracts: 1 }, "{name}");
        for (ad_id, delivered, observed) in next.deliveries() {
            let expected = before.get(&ad_id).copied().unwrap_or_default();
            assert_eq!((delivered, observed), expected, "{name}: {ad_id}");
        }
        assert!(next.deliveries().any(|(_, delivered, _)| delivered > 0.0));
        for row in &rows[rows.len() / 2..] {
            let mut row = row.clone();
            row.queue.retain(|entry| entry.ad_id != gone.ad_id);
            decide(&mut next, &row);
        }
        assert!(next.deliveries().all(|(ad, delivered, observed)| {
            delivered >= before.get(&ad).map_or(0.0, |b| b.0) && observed <= delivered && delivered.fract() == 0.0
        }));
    }
}

/// A saved state held every exposure of the file, those of the hours to come too.
#[test]
fn exposures_that_arrive_after_the_last_request_count_in_the_next_call() {
    let setting = setting();
    let log = std::fs::read_to_string(setting.day.join("track_log.tsv")).unwrap();
    let (header, rows) = log.split_once('\n').unwrap();
    let rows: Vec<&str> = rows.lines().collect();
    let exposures = setting.day.join("joined_exposure.tsv");
    let state = setting.scratch.path().join("state");
    let mut arguments = files(&setting.day);
    let plan = setting.plan.to_str().unwrap();
    let more = ["--policy", "baseline:pid", "--plan", plan, "--exposures", exposures.to_str().unwrap()];
    arguments.extend(more.map(str::to_owned));
    let score = |more: &[&str], rows: &[&str]| {
        let all: Vec<&str> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        run_score(&all, format!("{header}\n{}\n", rows.join("\n")).as_bytes()).0
    };
    let state = state.to_str().unwrap();
    let (morning, evening) = rows.split_at(rows.len() / 2);
    let whole = score(&[], &rows);
    let first = score(&["--save-state", state], morning);
    let second = score(&["--state", state], evening);
    let body = |text: &str| text.split_once('\n').unwrap().1.to_owned();
    assert_eq!(body(&whole), body(&first) + &body(&second));
}

/// One skipped line of a later time took in all exposures until then, and the rest of the day was scored at their counts.
#[test]
fn a_skipped_line_lets_no_exposure_arrive() {
    let setting = setting();
    let rows = setting.rows();
    let exposures = setting.day.join("joined_exposure.tsv");
    let state = setting.scratch.path().join("state");
    let mut arguments = files(&setting.day);
    let options = ["--policy", "baseline:pid", "--format", "jsonl", "--plan", setting.plan.to_str().unwrap()];
    let more = ["--exposures", exposures.to_str().unwrap(), "--save-state", state.to_str().unwrap()];
    arguments.extend(options.into_iter().chain(more).map(str::to_owned));
    let score = |rows: &[TrackRow]| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (decisions, said) = run_score(&arguments, &jsonl(rows).unwrap());
        (decisions, std::fs::read(&state).unwrap(), said)
    };
    let (decisions, saved, _) = score(&rows);
    let end = setting.served().day.end_ms();
    let skipped = |request_id: u64, ts_ms: u64, queue| TrackRow { request_id, ts_ms, queue, ..rows[0].clone() };
    let queue = rows[0].queue.clone();
    let unknown = vec![QueueEntry { ad_id: 987_654_321, ad_type: AdType::Contract, ..queue[0] }];
    for (row, reason) in [
        (skipped(u64::MAX - 1, end + DAY_MS, queue), "1 outside_day"),
        (skipped(u64::MAX - 2, end - 1, unknown), "1 unknown_contract"),
    ] {
        let (morning, evening) = rows.split_at(rows.len() / 4);
        let (got, state, said) = score(&[morning, &[row], evening].concat());
        assert!(said.contains(reason), "{said}");
        assert!(got == decisions, "{reason}: other decisions");
        assert!(state == saved, "{reason}: another state");
    }
}

#[test]
fn a_start_in_the_middle_of_the_day_counts_what_was_delivered() {
    let setting = setting();
    let rows = setting.rows();
    for name in ["receding-horizon", "by-contract"] {
        let mut whole = setting.scorer(name, ScoreOptions::default());
        let half = rows.len() / 2;
        rows[..half].iter().for_each(|row| drop(decide(&mut whole, row)));
        let delivered = whole.deliveries().map(|(ad_id, delivered, _)| (ad_id, delivered as u64)).collect();
        let mut late = setting.scorer(name, ScoreOptions::default());
        assert!(late.begin_with(&delivered).is_empty());
        assert_eq!(late.begin_with(&[(987_654_321, 1)].into()), [987_654_321]);
        late.begin_with(&delivered);
        assert!(whole.deliveries().eq(late.deliveries()));
        // It knows the counts and the clock, not the prices so far: most decisions are the same.
        let ahead = &rows[half..half + 300];
        let same = ahead.iter().filter(|row| decide(&mut whole, row).chosen == decide(&mut late, row).chosen).count();
        assert!(same > 200, "{name}: {same} of 300");
    }
}
