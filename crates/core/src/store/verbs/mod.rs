//! What verbs do: get and put, update, views of rows, and how a batch visits rows in DRAM and on
//! storage.

pub(in crate::store) mod direct;
pub(in crate::store) mod get_put;
mod hot;
pub(in crate::store) mod misses;
pub(in crate::store) mod rows;
mod update;
pub(in crate::store) mod views;
