//! A door for tests: the process kills itself at a chosen operation on a directory.
//!
//! `EMBEDROCK_KILL_POINT=write:137:middle` kills it in the middle of the 137th write that it
//! begins, `sync:2:before` and `sync:2:after` around the second sync; `any` counts all operations.
//! Compiled with the feature `kill` only, which no package has; without it a [`Point`] is nothing.
#![cfg_attr(
    feature = "kill",
    expect(unsafe_code, reason = "a process kills itself by a system call alone")
)]

/// An operation on a directory or its files, or a step of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Create,
    Write,
    Sync,
    Allocate,
    SetLen,
    Rename,
    Remove,
    SyncDir,
    /// Requests are handed to the kernel.
    Submit,
    /// An answer of the kernel is looked at.
    Complete,
}

/// An operation under way: the process may die when it begins, in its middle, or when it ends,
/// which is when this is dropped.
#[must_use]
pub(super) struct Point {
    #[cfg(feature = "kill")]
    place: Option<armed::Place>,
}

impl Point {
    /// The beginning of an operation.
    #[inline(always)]
    pub(super) fn begin(_operation: Operation) -> Self {
        Self {
            #[cfg(feature = "kill")]
            place: armed::begin(_operation),
        }
    }

    /// The middle of an operation, where the process may die after it did a part.
    #[inline(always)]
    pub(super) fn middle(&self, _part: impl FnOnce()) {
        #[cfg(feature = "kill")]
        if self.place == Some(armed::Place::Middle) {
            _part();
            armed::die();
        }
    }
}

#[cfg(feature = "kill")]
impl Drop for Point {
    fn drop(&mut self) {
        // An operation without a middle ends.
        if self.place.is_some() {
            armed::die();
        }
    }
}

#[cfg(feature = "kill")]
mod armed {
    use super::Operation;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The point in its operation at which the process dies.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Place {
        Before,
        Middle,
        After,
    }

    /// The operation at which the process is killed.
    struct Armed {
        /// `None` for any.
        operation: Option<Operation>,
        place: Place,
        /// Operations that begin until then.
        left: AtomicU64,
    }

    fn parse(text: &str) -> Option<Armed> {
        let [operation, number, place] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
        let operation = match operation {
            "any" => None,
            "create" => Some(Operation::Create),
            "write" => Some(Operation::Write),
            "sync" => Some(Operation::Sync),
            "allocate" => Some(Operation::Allocate),
            "set_len" => Some(Operation::SetLen),
            "rename" => Some(Operation::Rename),
            "remove" => Some(Operation::Remove),
            "sync_dir" => Some(Operation::SyncDir),
            "submit" => Some(Operation::Submit),
            "complete" => Some(Operation::Complete),
            _ => return None,
        };
        let place = match place {
            "before" => Place::Before,
            "middle" => Place::Middle,
            "after" => Place::After,
            _ => return None,
        };
        Some(Armed { operation, place, left: AtomicU64::new(number.parse().ok()?) })
    }

    fn armed() -> Option<&'static Armed> {
        static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
        let armed = ARMED.get_or_init(|| {
            let text = std::env::var("EMBEDROCK_KILL_POINT").ok()?;
            Some(parse(&text).unwrap_or_else(|| {
                panic!("EMBEDROCK_KILL_POINT is {text:?}; expected something like write:137:middle")
            }))
        });
        armed.as_ref()
    }

    /// Counts an operation that begins; `Some` when it is the chosen one and goes on a little.
    pub(super) fn begin(operation: Operation) -> Option<Place> {
        let armed = armed()?;
        if armed.operation.is_some_and(|chosen| chosen != operation)
            || armed.left.fetch_sub(1, Ordering::Relaxed) != 1
        {
            return None;
        }
        if armed.place == Place::Before {
            die();
        }
        Some(armed.place)
    }

    /// Ends the process as `kill -9` does.
    pub(super) fn die() -> ! {
        // SAFETY: the call takes two numbers and touches no memory of ours.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        unreachable!("SIGKILL cannot be refused")
    }
}
