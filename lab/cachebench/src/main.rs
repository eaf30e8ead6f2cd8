//! Cost and hit rates of replacement: the engine's row cache beside list LRU and LFU.
//!
//! `embedrock bench cache` starts this program (`make peers` builds it), which reads one
//! [`Run`](run::Run) a line, as JSON, and answers each with one line: an [`Answer`](run::Answer),
//! or `{"error": …}`. Nothing of this is in the engine or the package.
#![expect(clippy::print_stdout, reason = "the answers go to standard output")]

mod list;
mod list_lfu;
mod list_lru;
mod model;
mod replacement;
mod run;
mod sets;
mod trace;

use run::{Run, Runner};
use serde_json::json;
use std::io::BufRead;

fn main() -> std::io::Result<()> {
    let mut runner = Runner::default();
    for line in std::io::stdin().lock().lines() {
        let answer = serde_json::from_str::<Run>(&line?)
            .map_err(|error| error.to_string())
            .and_then(|run| runner.answer(&run))
            .unwrap_or_else(|message| json!({ "error": message }));
        println!("{answer}");
    }
    Ok(())
}
