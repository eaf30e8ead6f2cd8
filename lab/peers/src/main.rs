//! `embedrock-peers`: runs other stores under the same load as Embedrock, for its benchmarks.
//!
//! `list` says which engines there are; `load` writes every row of a table; `run` replays a trace
//! and reports times, bytes and mismatches. README.md has the protocol. Standard output
//! carries `ready` and JSON only; an error is one line on standard error and a non-zero exit.

mod allocator;
mod crew;
mod engines;
mod error;
mod rows;
mod run;
mod settings;
mod sorted;
mod sys;
mod trace;
mod window;

use std::io::{self, Write};
use std::process::ExitCode;

use error::{Error, Result};

fn main() -> ExitCode {
    match serve(std::env::args().nth(1).as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let line = error.to_string().replace('\n', " ");
            // Without standard error there is nobody left to tell; the exit code still does.
            let _ = writeln!(io::stderr(), "embedrock-peers: {line}");
            ExitCode::FAILURE
        }
    }
}

fn serve(command: Option<&str>) -> Result<()> {
    let (input, output) = (&mut io::stdin().lock(), &mut io::stdout().lock());
    let answer = match command {
        Some("list") => engines::list()?,
        Some("load") => run::load(&run::settings_from(input)?)?,
        Some("run") => {
            let settings = run::settings_from(input)?;
            run::Run::prepare(&settings)?.serve(input, output)?
        }
        other => {
            let came = other.unwrap_or("no command");
            return Err(Error::new(format!("{came}, expected list, load or run")));
        }
    };
    run::print(output, &answer)
}
