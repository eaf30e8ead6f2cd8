//! PETHash beside other maps: buckets visited, look-ups in batches, regions opened again.
//!
//! `embedrock bench pethash` starts this program (`make peers` builds it), which reads one
//! [`Ask`](ask::Ask) a line, as JSON, and answers each with one line, or `{"error": …}`. The other
//! maps are in this program alone: neither the engine nor the package depends on them.
#![expect(clippy::print_stdout, reason = "the answers go to standard output")]

mod ask;
mod keys;
mod maps;
mod probes;
mod regions;

use ask::{Ask, Bench};
use serde_json::json;
use std::io::BufRead;

fn main() -> std::io::Result<()> {
    let mut bench = Bench::default();
    for line in std::io::stdin().lock().lines() {
        let answer = serde_json::from_str::<Ask>(&line?)
            .map_err(|error| error.to_string())
            .and_then(|ask| bench.answer(ask))
            .unwrap_or_else(|message| json!({ "error": message }));
        println!("{answer}");
    }
    Ok(())
}
