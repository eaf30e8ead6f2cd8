//! Demands for memory and its use, the division of the budget, and the pools of readers that it
//! pays for.

pub(in crate::store) mod accounts;
pub(in crate::store) mod budget;
pub(in crate::store) mod pool;
