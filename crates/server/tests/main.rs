//! Whole servers behind real sockets. One program for all of them: each would be linked with the
//! engine again.

mod common;
mod gather;
mod lent;
mod robust;
mod serve;
mod skipped;
mod tools;
mod watch;
