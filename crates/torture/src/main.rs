//! The command, without Python.
#![expect(clippy::print_stdout, reason = "a command prints")]

use embedrock_torture::{minimise, parse, text};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

const COMMAND: &str = "embedrock-torture";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // Seconds, with room behind each for more seeds than a second can run.
    let seed = now.map_or(0, |now| now.as_secs()) * 10_000;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let command = match parse(&args, seed, cores) {
        Ok(command) => command,
        Err(what) => {
            println!("{what}");
            return ExitCode::from(2);
        }
    };
    if command.planted {
        return planted(&command);
    }
    println!("first seed {}", command.soak.first);
    let mut told = Duration::ZERO;
    let outcome = command.soak.run(&mut |at| {
        if at.elapsed - told >= Duration::from_secs(5) {
            told = at.elapsed;
            println!("{}", text::progress(at));
        }
        true
    });
    print!("{}", text::outcome(&outcome));
    for failure in &outcome.failures {
        println!("{}", text::failure(failure, COMMAND));
    }
    if let Some(failure) = outcome.failures.iter().find(|failure| !failure.hangs) {
        println!("smaller:\n{}", text::failure(&minimise(failure), COMMAND));
    }
    if let Some(path) = &command.json {
        let report = text::json(&outcome, command.soak.first, COMMAND);
        if let Err(error) = std::fs::write(path, format!("{report:#}\n")) {
            println!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    }
    if outcome.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(feature = "planted")]
fn planted(command: &embedrock_torture::Command) -> ExitCode {
    use embedrock_torture::planted::{Bug, RANGES, SEEDS_MAX, catch};
    println!("first seed {}", command.soak.first);
    println!("{:<26}{:>8}  {:<24}{:>12}{:>9}", "bug", "median", "seeds", "operations", "seconds");
    let mut good = true;
    let named =
        |bug: &&Bug| command.bugs.is_empty() || command.bugs.iter().any(|n| n == bug.name());
    for bug in Bug::ALL.iter().filter(named) {
        let caught = catch::<RANGES>(*bug, command.soak.first, &command.soak.limits);
        let show = |seeds: Option<u64>| seeds.map_or(format!(">{SEEDS_MAX}"), |n| n.to_string());
        println!(
            "{:<26}{:>8}  {:<24}{:>12}{:>9.1}  {:.60}",
            bug.name(),
            show(caught.median()),
            caught.seeds.map(show).join(" "),
            caught.operations,
            caught.elapsed.as_secs_f64(),
            caught.what
        );
        good &= caught.is_good();
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(not(feature = "planted"))]
fn planted(_: &embedrock_torture::Command) -> ExitCode {
    println!("this build has no planted bugs; make planted builds one that has");
    ExitCode::from(2)
}
