//! A deliberate bug, to see that tests find such: checks of buckets are not compared. Without the
//! feature `planted` there is none.

#[cfg(feature = "planted")]
mod chosen {
    use std::sync::atomic::{AtomicBool, Ordering};

    static UNCHECKED: AtomicBool = AtomicBool::new(false);

    /// Plants the bug in all regions of the process, or takes it out.
    pub fn plant_unchecked_buckets(planted: bool) {
        UNCHECKED.store(planted, Ordering::Relaxed);
    }

    pub(crate) fn buckets_are_unchecked() -> bool {
        UNCHECKED.load(Ordering::Relaxed)
    }
}

#[cfg(feature = "planted")]
pub(crate) use chosen::buckets_are_unchecked;
#[cfg(feature = "planted")]
pub use chosen::plant_unchecked_buckets;

/// False: this build has no deliberate bug.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn buckets_are_unchecked() -> bool {
    false
}
