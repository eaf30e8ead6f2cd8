//! Random lives of stores on a simulated device, with faults, beside a plain map.
#![expect(rustdoc::private_intra_doc_links, reason = "the rules are told where they are checked")]

mod ahead;
mod check;
mod commits;
mod faults;
mod judge;
mod life;
mod model;
mod plan;
mod random;
mod readers;
mod report;
mod run;
mod verbs;

pub use faults::{Fault, FaultSet};
pub use plan::{Habit, Limits};
pub use report::{Counts, Event};
pub use run::{Failure, run};
