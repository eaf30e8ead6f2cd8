//! Parts of the engine that benches measure alone. This is no interface that is kept: a name may
//! change or go with any release, and nothing but this repository's own benches may use it.

pub use crate::cache::{Cache, CacheShape, DenseTable, Location, RowMut};
pub use crate::index::{DenseIndex, SparseIndex};
pub use crate::storage::PageLayout;
