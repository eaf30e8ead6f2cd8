//! Passes over whole tables and stores: scan, warm, check, copy, and the device's rate.

pub(in crate::store) mod check;
pub(in crate::store) mod copy;
mod rate;
pub(in crate::store) mod scan;
mod warm;
