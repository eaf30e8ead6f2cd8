//! The `lsm` layout: a log of the newest rows above one sorted bottom.
//!
//! The log keeps an exact index of the rows that it has; every other row of a class lies in one
//! partition of the [`bottom`], which a merge writes anew with rows of the log.

pub mod bottom;
