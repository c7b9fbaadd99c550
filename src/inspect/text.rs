//! Renders an inspection as text.

use std::fmt::Write as _;

use serde_json::Value;

use crate::shm::{Balance, HalfState, HalvesView, RingView};

use super::memory::{ControlView, Memory};
use super::{Inspection, State};

/// Maximum number of characters shown of a metrics record.
const RECORD_CHARS: usize = 220;

/// Returns the text that `admix inspect` prints.
pub fn render(seen: &Inspection) -> String {
    let mut out = String::new();
    header(&mut out, seen);
    if let Some(memory) = &seen.memory {
        shared_memory(&mut out, memory);
    }
    if !seen.checkpoints.is_empty() {
        let _ = writeln!(out, "\nCheckpoints: {}", seen.checkpoints.join(", "));
    }
    if !seen.metrics.is_empty() {
        let _ = writeln!(out, "\nLast records of metrics.jsonl:");
        for record in &seen.metrics {
            let _ = writeln!(out, "  {}", one_record(record));
        }
    }
    if !seen.events.is_empty() {
        let _ = writeln!(out, "\nLast events (UTC):");
        for e in &seen.events {
            let _ = writeln!(out, "  {}  {:<12} {:>7}  {}", clock(e.time_ms), plain(&e.process), e.pid, e.says);
        }
    }
    for note in &seen.notes {
        let _ = writeln!(out, "\nnote: {}", plain(note));
    }
    out
}

fn header(out: &mut String, seen: &Inspection) {
    let _ = write!(out, "{}: ", seen.run_dir.display());
    let m = seen.manifest.as_ref();
    let ended = m.and_then(|m| m.ended.as_deref()).map(plain).unwrap_or_default();
    let _ = match (seen.state, m) {
        (State::Alive, Some(m)) if m.ended.is_some() => writeln!(out, "alive; training ended {ended}, it reports"),
        (State::Alive, Some(_)) => writeln!(out, "alive"),
        (State::Alive, None) => writeln!(out, "alive; it plans, training has not begun"),
        (State::Ended, _) => writeln!(out, "dead; ended {ended}"),
        (State::Failed, _) => writeln!(out, "dead; failed {ended}"),
        (State::Killed, Some(_)) => writeln!(out, "dead; no end was written: it was killed, or the disk was full"),
        (State::Killed, None) => writeln!(
            out,
            "dead; it has no manifest that can be read: it ended before training began, or the file is damaged"
        ),
    };
    if let Some(m) = m {
        let mode = format!("admix {}, {}, {} on {}, seed {}", m.admix, m.mode, m.device, m.host, m.seed);
        let _ = writeln!(out, "  {}, started {}", plain(&mode), plain(&m.started));
        if let Some(failure) = &m.failure {
            let _ = writeln!(out, "  failure: {}", plain(failure));
        }
        if let Some(outcome) = &m.outcome {
            let figure = |name: &str| match &outcome[name] {
                Value::Number(n) if n.is_f64() => format!("{:.4}", n.as_f64().unwrap_or(f64::NAN)),
                Value::String(text) => plain(text),
                other => other.to_string(),
            };
            if m.is_values() {
                let _ = writeln!(
                    out,
                    "  outcome: {}; {} updates, {} samples, {} passes, best validation loss {}",
                    figure("reason"),
                    figure("updates"),
                    figure("samples"),
                    figure("passes"),
                    figure("best_loss"),
                );
                return;
            }
            let _ = writeln!(
                out,
                "  outcome: {}; {} updates, {} samples, {} evaluations, best J {}, share {}",
                figure("reason"),
                figure("updates"),
                figure("samples"),
                figure("evaluations"),
                figure("best_j"),
                figure("best_share"),
            );
        }
    }
}

fn shared_memory(out: &mut String, memory: &Memory) {
    let main = if memory.main_alive { "alive" } else { "dead; this is what it left" };
    let _ = writeln!(out, "\nShared memory {} (main process {}, {main})", memory.names, memory.main_pid);
    if let Some(control) = &memory.control {
        control_block(out, control);
    }
    if let Some(p) = &memory.params {
        let _ = writeln!(out, "  parameters: version {}, room for {} words, {} torn", p.version, p.capacity, p.torn);
    }
    if let Some(halves) = &memory.snapshots {
        snapshots(out, halves);
    }
    tables(out, memory);
    if !memory.rings.is_empty() {
        let _ = writeln!(
            out,
            "\n  {:<8} {:<34} {:>9} {:>9} {:>8} {:>8}  ledger",
            "ring", "regions", "full", "next seq", "writer", "reader"
        );
        memory.rings.iter().for_each(|ring| one_ring(out, ring));
        let _ = writeln!(out, "  samples: {}{}", memory.ledger, balance(memory.balance, writing(memory)));
    }
}

fn tables(out: &mut String, memory: &Memory) {
    let processes = memory.control.as_ref().map_or(&[][..], |control| &control.processes);
    for (number, table) in memory.tables.iter().enumerate() {
        let writer = processes.iter().find(|p| p.pid.is_some() && p.pid.map(u64::from) == table.writer_pid);
        let _ = writeln!(
            out,
            "  table {number}: {} rows of {}, {:.1} MiB in {}; written by {}, {} times",
            table.rows,
            table.capacity,
            table.bytes as f64 / f64::from(1 << 20),
            table.segment,
            writer.map_or("nobody", |writer| &writer.name),
            table.writes
        );
    }
}

fn snapshots(out: &mut String, view: &HalvesView) {
    let _ = write!(
        out,
        "  snapshots: dense part ready {}, sparse part ready {}, on disk {}",
        view.dense_ready, view.sparse_ready, view.committed
    );
    for (half, name) in view.halves.iter().zip(["even", "odd"]) {
        let state = match half.state {
            HalfState::Free => "free",
            HalfState::Begun => "begun",
            HalfState::Complete => "complete",
        };
        let (snapshot, megabytes) = (half.snapshot, half.dense_bytes.saturating_add(half.sparse_bytes) as f64 * 1e-6);
        let _ = write!(out, "; {name} half {state}, holds {snapshot} of update {}, {megabytes:.2} MB", half.update);
    }
    out.push('\n');
}

fn writing(memory: &Memory) -> u64 {
    memory.rings.iter().fold(0, |sum, ring| sum.saturating_add(ring.writing))
}

fn balance(balance: Balance, writing: u64) -> String {
    let under_way = if writing > 0 { format!(" + {writing} being written") } else { String::new() };
    match balance {
        Balance::Exact => format!("{under_way}; it balances"),
        Balance::Moving => format!("{under_way}; a move is under way"),
        Balance::Off => format!("{under_way}; IT DOES NOT BALANCE"),
    }
}

fn one_ring(out: &mut String, ring: &RingView) {
    let count = |wanted| ring.regions.iter().filter(|region| region.state == wanted).count();
    use crate::shm::State::{Free, Readable, Reading, Writing};
    let states: Vec<String> = [(Free, "free"), (Writing, "writing"), (Readable, "readable"), (Reading, "reading")]
        .into_iter()
        .filter(|(state, _)| count(*state) > 0)
        .map(|(state, name)| format!("{} {name}", count(state)))
        .collect();
    let used: u64 = ring.regions.iter().fold(0, |sum, region| sum.saturating_add(region.bytes));
    let room = (ring.capacity as f64 * ring.regions.len() as f64).max(1.0);
    let role = |pid: Option<u64>| pid.map_or_else(|| "-".into(), |pid| pid.to_string());
    let _ = writeln!(
        out,
        "  {:<8} {:<34} {:>8.1}% {:>9} {:>8} {:>8}  {}{}",
        format!("ring{}", ring.actor),
        states.join(", "),
        100.0 * used as f64 / room,
        ring.next_seq,
        role(ring.writer_pid),
        role(ring.reader_pid),
        ring.ledger,
        balance(ring.balance, ring.writing),
    );
}

fn control_block(out: &mut String, control: &ControlView) {
    let _ = writeln!(out, "  stop level {}: {}", control.stop_level, control.stop);
    let _ = writeln!(out, "\n  {:<14} {:>8}  {:<6} {:>6}  silent", "process", "pid", "", "starts");
    for p in &control.processes {
        let pid = p.pid.map_or_else(|| "-".into(), |pid| pid.to_string());
        let alive = if p.alive { "alive" } else { "dead" };
        let silent = p.silent_ms as f64 / 1000.0;
        let _ = writeln!(out, "  {:<14} {pid:>8}  {alive:<6} {:>6}  {silent:.1} s", p.name, p.incarnation);
    }
    let l = &control.learner;
    let _ = writeln!(
        out,
        "\n  learner: {} updates, {} samples, version {}; policy lag mean {:.1}, p95 {}; computed {:.1} s, waited {:.1} s",
        l.updates, l.samples, l.param_version, l.policy_lag.mean, l.policy_lag.p95, l.compute_s, l.wait_s
    );
    for (rank, l) in (1..).zip(&control.learner_ranks) {
        let _ = writeln!(
            out,
            "  learner{rank}: {} updates, {} samples of its own; policy lag mean {:.1}, p95 {}; computed {:.1} s, waited {:.1} s",
            l.updates, l.samples, l.policy_lag.mean, l.policy_lag.p95, l.compute_s, l.wait_s
        );
    }
    let e = &control.evaluator;
    let j = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.0}"));
    let share = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{:.2}", 100.0 * v));
    let _ = writeln!(
        out,
        "  evaluator: {} evaluations, {} without improvement; J last {}, best {}; share last {}, best {}",
        e.evaluations,
        e.without_improvement,
        j(e.last_j),
        j(e.best_j),
        share(e.last_share),
        share(e.best_share)
    );
    let c = &control.checkpoint;
    let _ = writeln!(
        out,
        "  checkpointer: {} snapshots on disk, {:.1} MB in {:.1} s, {} refused by the file system",
        c.snapshots,
        c.bytes as f64 * 1e-6,
        c.write_s,
        c.failures
    );
    for a in &control.actors {
        let _ = writeln!(
            out,
            "  actor{}: {} steps, version {}; computed {:.1} s, waited {:.1} s",
            a.id, a.steps, a.param_version, a.compute_s, a.wait_s
        );
    }
}

/// Returns a record's kind and plain fields, cut to a line.
fn one_record(record: &Value) -> String {
    let mut line = String::new();
    if let Some(time) = record["time"].as_f64() {
        line += &clock((time * 1000.0) as u64);
    }
    line += &format!(" {}", record["kind"].as_str().unwrap_or("?"));
    for (key, value) in record.as_object().into_iter().flatten() {
        match value {
            _ if key == "time" || key == "kind" => {}
            Value::Number(n) if n.is_f64() => line += &format!(" {key} {:.4}", n.as_f64().unwrap_or(f64::NAN)),
            Value::Number(_) | Value::Bool(_) | Value::String(_) => line += &format!(" {key} {value}"),
            Value::Null | Value::Array(_) | Value::Object(_) => {}
        }
    }
    let line = plain(&line);
    if line.chars().count() <= RECORD_CHARS {
        return line;
    }
    line.chars().take(RECORD_CHARS).chain("..".chars()).collect()
}

/// Replaces control characters, which a terminal would obey.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns `HH:MM:SS.mmm`, UTC.
fn clock(time_ms: u64) -> String {
    let (s, ms) = (time_ms / 1000 % 86_400, time_ms % 1000);
    format!("{:02}:{:02}:{:02}.{ms:03}", s / 3600, s / 60 % 60, s % 60)
}
