//! Random lives of stores on a simulated device, with faults, beside a plain map.
//!
//! A [`Soak`] runs seeds. Each seed is a life (`life`): settings drawn from it (`plan`), verbs
//! (`verbs`, `commits`, `pins`, `readers`, `ahead`), and faults of the device (`faults`). `model`
//! is the map, `check` compares, and `judge` says which errors are answers. `exam` ends a life on
//! devices that lie. Some seeds have a second life, with rows on persistent memory (`regions`).
//! `planted` counts the seeds until a deliberate bug is found.

mod ahead;
mod catalog;
mod check;
mod command;
mod commits;
mod exam;
mod faults;
mod judge;
mod life;
mod meddling;
mod minimise;
mod model;
mod pins;
mod plan;
#[cfg(feature = "planted")]
pub mod planted;
mod random;
mod readers;
mod regions;
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
