//! Random lives of stores on a simulated device, with faults, beside a plain map.

mod ahead;
mod check;
mod command;
mod commits;
mod faults;
mod judge;
mod life;
mod minimise;
mod model;
mod plan;
#[cfg(feature = "planted")]
pub mod planted;
mod random;
mod readers;
mod report;
mod run;
mod soak;
pub mod text;
mod verbs;

pub use command::{Command, parse};
pub use faults::{Fault, FaultSet};
pub use minimise::minimise;
pub use plan::{Habit, Limits};
pub use report::{Counts, Event};
pub use run::{Failure, run};
pub use soak::{Outcome, Progress, SEEDS_FOR_ACTIVATION, Soak};
