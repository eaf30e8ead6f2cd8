//! The thread that moves displaced keys home, a little at a time.
//!
//! It begins with the first change of a region, takes a twentieth of the time, and rests once a
//! pass over all buckets has found nothing to move.

use super::region::Region;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Buckets between two looks at the clock.
const BUCKETS: u64 = 64;
/// The length of a slice of work, and that of the rest after it, in slices.
const SLICE: Duration = Duration::from_micros(500);
const REST: u32 = 19;
/// Rests are no shorter, so that nothing is woken for next to no work.
const REST_MIN: Duration = Duration::from_millis(5);

/// The longest sleep while there is nothing to do.
const IDLE: Duration = Duration::from_secs(3600);

/// The messages to the thread of a region.
#[derive(Default)]
pub(super) struct Rehoming {
    /// True while there may be something to move.
    has_work: AtomicBool,
    signals: Arc<Signals>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Signals {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Rehoming {
    /// Keys came or went.
    pub(super) fn wake(&self, region: &Arc<Region>) {
        if self.has_work.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (region, signals) = (Arc::downgrade(region), Arc::clone(&self.signals));
            let made = std::thread::Builder::new()
                .name("embedrock-rehome".to_owned())
                .spawn(move || run(&region, &signals));
            // Look-ups without it are right, and visit more buckets: the next change tries again.
            *thread = made.ok();
            self.has_work.store(thread.is_some(), Ordering::Release);
        }
        // Under the lock under which the thread looks before it rests, so that it hears of it.
        let _hears = self.signals.stopped.lock();
        self.signals.changed.notify_one();
    }

    /// Ends the thread and waits for it.
    pub(super) fn stop(&self) {
        *self.signals.stopped.lock() = true;
        self.signals.changed.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            // It panics for a broken invariant alone, and has said so.
            let _ = thread.join();
        }
    }
}

fn run(region: &Weak<Region>, signals: &Signals) {
    let (mut passed, mut moved, mut rest) = (0, 0, REST_MIN);
    loop {
        let mut stopped = signals.stopped.lock();
        let has_work = rest == IDLE
            && region.upgrade().is_some_and(|r| r.rehoming.has_work.load(Ordering::Acquire));
        if !*stopped && !has_work {
            signals.changed.wait_for(&mut stopped, rest);
        }
        if *stopped {
            return;
        }
        drop(stopped);
        let Some(region) = region.upgrade() else { return };
        // Changes from here on ask for another pass.
        if passed == 0 && !region.rehoming.has_work.swap(false, Ordering::AcqRel) {
            rest = IDLE;
            continue;
        }
        let begun = Instant::now();
        while begun.elapsed() < SLICE && passed < region.rows.buckets() {
            match region.move_keys(|rows| rows.rehome(BUCKETS)) {
                Some(Ok(found)) => {
                    passed += BUCKETS;
                    moved += found.moved;
                }
                // A sweep is under way.
                None => {
                    region.rehoming.has_work.store(true, Ordering::Release);
                    break;
                }
                // The region takes no changes any more, and tells the next verb.
                Some(Err(_)) => return,
            }
        }
        rest = (begun.elapsed() * REST).max(REST_MIN);
        if passed >= region.rows.buckets() {
            if moved > 0 {
                region.rehoming.has_work.store(true, Ordering::Release);
            }
            (passed, moved) = (0, 0);
        }
    }
}
