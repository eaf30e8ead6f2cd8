//! The output of a run, for people and for programs.

use crate::faults::Fault;
use crate::plan::{Habit, Limits};
use crate::report::Event;
use crate::run::Failure;
use crate::soak::{Outcome, Progress};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// One line.
pub fn progress(at: &Progress<'_>) -> String {
    let seconds = at.elapsed.as_secs_f64().max(1e-9);
    let faults: u64 = at.counts.faults.iter().sum();
    format!(
        "{} seeds, {} operations, {faults} faults, {:.0} seeds/s",
        at.counts.seeds,
        at.counts.operations,
        at.counts.seeds as f64 / seconds
    )
}

/// Everything that was counted and found.
pub fn outcome(outcome: &Outcome) -> String {
    let mut text = String::new();
    let counts = &outcome.counts;
    let faults: Vec<(&str, u64)> =
        Fault::ALL.iter().map(|f| (f.name(), counts.faults[*f as usize])).collect();
    let events: Vec<(&str, u64)> =
        Event::ALL.iter().map(|e| (e.name(), counts.events[*e as usize])).collect();
    let verbs: Vec<(&str, u64)> = counts.verbs.iter().map(|(verb, n)| (*verb, *n)).collect();
    let parts: [(&str, &[(&str, u64)]); 4] = [
        ("faults that struck", &faults),
        ("what happened to stores", &events),
        ("rare branches of the engine", &outcome.branches),
        ("verbs", &verbs),
    ];
    for (title, rows) in parts {
        let _ = writeln!(text, "{title}");
        for row in rows.chunks(4) {
            let cells = row.iter().map(|(name, n)| format!("  {name:<20}{n:>8}"));
            let _ = writeln!(text, "{}", cells.collect::<String>().trim_end());
        }
    }
    let seconds = outcome.elapsed.as_secs_f64();
    let _ =
        write!(text, "{} seeds, {} operations in {seconds:.1} s", counts.seeds, counts.operations);
    let end = match (outcome.failures.len(), outcome.dormant.as_slice()) {
        (0, []) if outcome.stopped => ": ended early, and nothing was found".to_owned(),
        (0, []) => ": every store held".to_owned(),
        (0, dormant) => format!(": never came: {}", dormant.join(", ")),
        (n, _) => format!(": {n} failed"),
    };
    let _ = writeln!(text, "{end}");
    text
}

/// A failure, and how to see it again.
pub fn failure(failure: &Failure, command: &str) -> String {
    let Failure { seed, operation, what, settings, last, limits, hangs: _ } = failure;
    format!(
        "seed {seed} fails at operation {operation}:\n  {what}\nsettings: {settings}\n\
         the last operations:\n  {}\nreplay: {command} --seed {seed} --seeds 1{}\n",
        last.join("\n  "),
        options(limits)
    )
}

/// The options that give these limits.
fn options(limits: &Limits) -> String {
    let all = Limits::default();
    let mut text = String::new();
    if limits.faults != all.faults {
        let _ = write!(text, " --faults {}", limits.faults);
    }
    if limits.operations != all.operations {
        let _ = write!(text, " --operations {}", limits.operations);
    }
    if limits.tables != all.tables {
        let _ = write!(text, " --tables {}", limits.tables);
    }
    if !limits.without.is_empty() {
        let names: Vec<&str> = limits.without.iter().map(|habit: &Habit| habit.name()).collect();
        let _ = write!(text, " --without {}", names.join(","));
    }
    if let Some(only) = &limits.only {
        let numbers: Vec<String> = only.iter().map(u64::to_string).collect();
        let _ = write!(text, " --only {}", numbers.join(","));
    }
    text
}

/// The same for programs.
pub fn json(outcome: &Outcome, first: u64, command: &str) -> Value {
    let counts = &outcome.counts;
    let pairs = |pairs: Vec<(&str, u64)>| -> Value {
        pairs.into_iter().map(|(name, n)| (name.to_owned(), json!(n))).collect()
    };
    let failures: Vec<Value> = outcome
        .failures
        .iter()
        .map(|found| {
            json!({
                "seed": found.seed,
                "operation": found.operation,
                "what": found.what,
                "settings": found.settings,
                "last": found.last,
                "replay": format!(
                    "{command} --seed {} --seeds 1{}", found.seed, options(&found.limits)
                ),
            })
        })
        .collect();
    json!({
        "first_seed": first,
        "seeds": counts.seeds,
        "operations": counts.operations,
        "seconds": outcome.elapsed.as_secs_f64(),
        "stopped": outcome.stopped,
        "good": outcome.is_good(),
        "faults": pairs(Fault::ALL.map(|f| (f.name(), counts.faults[f as usize])).to_vec()),
        "events": pairs(Event::ALL.map(|e| (e.name(), counts.events[e as usize])).to_vec()),
        "branches": pairs(outcome.branches.clone()),
        "verbs": pairs(counts.verbs.iter().map(|(verb, n)| (*verb, *n)).collect()),
        "dormant": outcome.dormant,
        "failures": failures,
    })
}
