//! The extension module `embedrock._core`: the engine's public surface, for Python.
//!
//! It converts arguments, releases the interpreter while the engine works, and raises the engine's
//! errors as exceptions of `embedrock.errors`. It never decides anything: shapes, dtypes and
//! defaults are settled in `embedrock/table.py`, which hands over contiguous arrays, one call a
//! batch. Every call into the engine happens detached from the interpreter, without exception: the
//! engine calls back into Python while it holds locks (`Store.modify`), so a thread that waited for
//! such a lock attached would never be woken.

mod arrays;
mod changes;
mod commit;
mod convert;
mod error;
mod freeze;
mod hashing;
mod lent;
mod logs;
mod maintenance;
mod objects;
mod permits;
mod placement;
mod scan;
mod schedule;
mod server;
mod store;
mod torture;

/// The engine of Embedrock. Use the package `embedrock`, which checks and documents what goes in.
#[pyo3::pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::logs::begin();
        Ok(())
    }

    #[pymodule_export]
    use crate::arrays::distinct;
    #[pymodule_export]
    use crate::changes::Changes;
    #[pymodule_export]
    use crate::commit::PendingCommit;
    #[pymodule_export]
    use crate::convert::amount_of;
    #[pymodule_export]
    use crate::freeze::freeze;
    #[pymodule_export]
    use crate::hashing::{buckets_of, hash_pieces, hash_texts};
    #[pymodule_export]
    use crate::logs::{hand_over_logs, log_line, log_to_stderr, set_log_receiver};
    #[pymodule_export]
    use crate::maintenance::{check, check_place, copy, reshard, resize};
    #[pymodule_export]
    use crate::objects::{CommitFiles, finish_pull};
    #[pymodule_export]
    use crate::permits::Permits;
    #[pymodule_export]
    use crate::placement::{
        count_pages, number_rows, place_replicas, place_rows, place_strawman, placement_memory,
        serve_pages,
    };
    #[pymodule_export]
    use crate::scan::Scan;
    #[pymodule_export]
    use crate::schedule::{Schedule, ScheduleMaker};
    #[pymodule_export]
    use crate::server::Server;
    #[pymodule_export]
    use crate::store::{Hyper, Store, TableId};
    #[pymodule_export]
    use crate::torture::torture;

    /// Version of the engine, equal to the package's.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python programs expect")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
