//! The options of the command, as text.

use crate::faults::FaultSet;
use crate::plan::{Habit, Limits};
use crate::soak::Soak;
use std::collections::BTreeSet;
use std::time::Duration;

/// Minutes that a run takes where nothing says how long.
const MINUTES: f64 = 1.0;

/// The parsed command line.
#[derive(Clone, Debug)]
pub struct Command {
    /// The run.
    pub soak: Soak,
    /// The file for the report as JSON.
    pub json: Option<String>,
    /// Plant bugs and count the seeds until each is found.
    pub planted: bool,
    /// Of them those that are named; empty for all.
    pub bugs: Vec<String>,
}

/// Reads the options. `seed` and `jobs` are taken where they say nothing.
///
/// *Errors*: a sentence that names the option.
pub fn parse(args: &[String], seed: u64, jobs: usize) -> Result<Command, String> {
    let mut limits = Limits::default();
    let (mut first, mut seeds, mut minutes, mut jobs) = (seed, None, None, jobs);
    let (mut json, mut planted, mut bugs) = (None, false, Vec::new());
    let mut failures_max = 1;
    let mut args = args.iter();
    while let Some(option) = args.next() {
        if option == "--planted" {
            planted = true;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{option} needs a value"))?;
        match option.as_str() {
            "--minutes" => minutes = Some(number::<f64>(option, value)?),
            "--seeds" => seeds = Some(number(option, value)?),
            "--seed" => first = number(option, value)?,
            "--faults" => limits.faults = value.parse::<FaultSet>()?,
            "--without" => limits.without = habits(value)?,
            "--operations" => limits.operations = number(option, value)?,
            "--tables" => limits.tables = number(option, value)?,
            "--only" => limits.only = Some(numbers(option, value)?),
            "--jobs" => jobs = number(option, value)?,
            "--max-failures" => failures_max = number(option, value)?,
            "--bugs" => bugs = value.split(',').map(str::to_owned).collect(),
            "--json" => json = Some(value.clone()),
            _ => return Err(format!("there is no option {option}")),
        }
    }
    if minutes.is_none() && seeds.is_none() {
        minutes = Some(MINUTES);
    }
    if let Some(minutes) = minutes.filter(|minutes| !(*minutes > 0.0 && minutes.is_finite())) {
        return Err(format!("--minutes is {minutes}, expected more than 0"));
    }
    let time = minutes.map(|minutes| Duration::try_from_secs_f64(minutes * 60.0));
    let time = time.transpose().map_err(|error| format!("--minutes: {error}"))?;
    let soak = Soak { first, seeds, time, limits, jobs, failures_max };
    Ok(Command { soak, json, planted, bugs })
}

fn number<T: std::str::FromStr>(option: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{option} is {value:?}, expected a number"))
}

fn numbers(option: &str, value: &str) -> Result<BTreeSet<u64>, String> {
    value.split(',').filter(|part| !part.is_empty()).map(|part| number(option, part)).collect()
}

fn habits(value: &str) -> Result<Vec<Habit>, String> {
    let find = |name: &str| {
        Habit::ALL.into_iter().find(|habit| habit.name() == name).ok_or_else(|| {
            let known = Habit::ALL.map(Habit::name).join(", ");
            format!("--without names {name:?}, expected some of {known}")
        })
    };
    value.split(',').map(find).collect()
}
