//! When upkeep runs: steps of merges, and units of cleaning.
//!
//! Every part of it is asked for here. With [`UpkeepScheduler::Off`] rows that are written pay for
//! upkeep, and all that is paid for runs. The others put it off beside that, until the window
//! covers its time, or until its share of the time is due. Pressing upkeep is never put off.
//! *Source*: RecDB's compaction scheduler (section 4.4, equation 2).

use crate::config::UpkeepScheduler;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// The share of the time that passes which upkeep takes at most.
const SHARE: f64 = 0.2;
/// Time that upkeep may catch up on after a rest, or rests for after it took long. A part that
/// seems to take longer mostly had no core: its thread has what time others leave.
const CATCH_UP_MAX: Duration = Duration::from_millis(50);
/// Bound of the share's balance, in seconds: the most that is left, and the most that it lacks.
const LEFT_MAX_S: f64 = SHARE * CATCH_UP_MAX.as_millis() as f64 / 1e3;
/// A measured time counts for one part of so many of the mean.
const MEAN_OF: u32 = 8;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Work {
    /// A step of a merge.
    Step = 0,
    /// A unit of cleaning.
    Cleaning = 1,
}

/// Outcome of requests since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Counted {
    /// Steps of merges that were done.
    pub(in crate::store) steps: u64,
    /// Units of cleaning that were done.
    pub(in crate::store) cleaned: u64,
    /// Number of times that either was put off.
    pub(in crate::store) put_off: u64,
}

#[derive(Debug, Default)]
struct State {
    /// The mean time of a step and of a unit of cleaning; zero before the first.
    means: [Duration; 2],
    /// When the share was last looked at, and what is left of it: less than nothing once a part
    /// took longer, by as much at most as there may be left.
    looked: Option<Instant>,
    left_s: f64,
    counted: Counted,
    /// Requests so far, where tests have every other one admitted, whatever the time.
    turns: Option<u64>,
}

/// Says when upkeep runs.
#[derive(Debug)]
pub(in crate::store) struct Scheduler {
    kind: UpkeepScheduler,
    state: Mutex<State>,
}

impl Scheduler {
    pub(in crate::store) fn new(kind: UpkeepScheduler) -> Self {
        Self { kind, state: Mutex::default() }
    }

    /// Whether a part of upkeep may be done at `now`. `ahead` is for how long the batches last that
    /// were read ahead, `None` where no window is in use; `is_pressed` says that upkeep cannot
    /// wait. Either is asked only where it matters.
    pub(in crate::store) fn admits(
        &self,
        work: Work,
        now: Instant,
        ahead: impl FnOnce() -> Option<Duration>,
        is_pressed: impl FnOnce() -> bool,
    ) -> bool {
        if self.kind == UpkeepScheduler::Off {
            return true;
        }
        let mut state = self.state.lock();
        let covered = match self.kind {
            _ if state.turns.is_some() => state.is_turn(),
            UpkeepScheduler::Off => true,
            UpkeepScheduler::Gate => ahead().is_none_or(|ahead| ahead > state.means[work as usize]),
            UpkeepScheduler::Share => state.is_due(now),
        };
        let admits = covered || is_pressed();
        state.counted.put_off += u64::from(!admits);
        admits
    }

    /// From here on every other request is admitted, as if its time had come: a replay of a run
    /// does not have its times.
    #[cfg(any(test, feature = "testing"))]
    pub(in crate::store) fn by_turns(&self) {
        self.state.lock().turns = Some(0);
    }

    /// A part of upkeep was done, which took so long.
    pub(in crate::store) fn done(&self, work: Work, took: Duration) {
        let mut state = self.state.lock();
        match work {
            Work::Step => state.counted.steps += 1,
            Work::Cleaning => state.counted.cleaned += 1,
        }
        let mean = &mut state.means[work as usize];
        let counted = took.min(CATCH_UP_MAX);
        *mean = match mean.is_zero() {
            true => counted,
            false => (*mean * (MEAN_OF - 1) + counted) / MEAN_OF,
        };
        state.left_s = (state.left_s - took.as_secs_f64()).max(-LEFT_MAX_S);
    }

    /// Outcome of requests since the store was opened.
    pub(in crate::store) fn counted(&self) -> Counted {
        self.state.lock().counted
    }
}

impl State {
    /// Whether it is the turn of a request, where they take turns.
    fn is_turn(&mut self) -> bool {
        let turns = self.turns.map_or(0, |turns| turns + 1);
        self.turns = Some(turns);
        turns.is_multiple_of(2)
    }

    /// Whether upkeep has taken less than its share of the time.
    fn is_due(&mut self, now: Instant) -> bool {
        let passed = self.looked.replace(now).map_or(CATCH_UP_MAX, |looked| now - looked);
        let more = SHARE * passed.as_secs_f64();
        self.left_s = (self.left_s + more).min(LEFT_MAX_S);
        self.left_s > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn not_asked<T>() -> T {
        panic!("it does not matter")
    }

    #[test]
    fn without_a_scheduler_all_runs_that_is_paid_for() {
        let scheduler = Scheduler::new(UpkeepScheduler::Off);
        scheduler.done(Work::Step, 1000 * MS);
        assert!(scheduler.admits(Work::Step, Instant::now(), not_asked, not_asked));
        assert_eq!(scheduler.counted(), Counted { steps: 1, ..Counted::default() });
    }

    #[test]
    fn a_gate_opens_where_the_window_covers_the_work_and_at_the_floor() {
        let scheduler = Scheduler::new(UpkeepScheduler::Gate);
        let admits = |work, ahead: Option<u32>, is_pressed| {
            let ahead = ahead.map(|ms| ms * MS);
            scheduler.admits(work, Instant::now(), || ahead, || is_pressed)
        };
        assert!(!admits(Work::Step, Some(0), false), "nothing is read ahead");
        assert!(admits(Work::Step, Some(1), false), "nobody knows its time yet");
        scheduler.done(Work::Step, 10 * MS);
        scheduler.done(Work::Cleaning, 2 * MS);
        assert!(!admits(Work::Step, Some(9), false) && admits(Work::Step, Some(11), false));
        assert!(admits(Work::Cleaning, Some(9), false) && !admits(Work::Cleaning, Some(1), false));
        assert!(admits(Work::Step, Some(0), true), "at the floor");
        assert!(admits(Work::Step, None, false), "no window is in use");
        // Times are means.
        (0..99).for_each(|_| scheduler.done(Work::Step, 20 * MS));
        assert!(!admits(Work::Step, Some(19), false) && admits(Work::Step, Some(21), false));
        assert_eq!(scheduler.counted(), Counted { steps: 100, cleaned: 1, put_off: 4 });
    }

    #[test]
    fn a_share_of_the_time_is_not_exceeded_but_at_the_floor() {
        let scheduler = Scheduler::new(UpkeepScheduler::Share);
        let (begun, step) = (Instant::now(), 4 * MS);
        let mut busy = Duration::ZERO;
        for ms in 0..1000 {
            if scheduler.admits(Work::Step, begun + ms * MS, not_asked, || false) {
                scheduler.done(Work::Step, step);
                busy += step;
            }
        }
        assert!(busy > 180 * MS && busy < 220 * MS, "{busy:?} of a second");
        assert!(!scheduler.admits(Work::Step, begun + 999 * MS, not_asked, || false));
        assert!(scheduler.admits(Work::Step, begun + 999 * MS, not_asked, || true));
        // A long rest is not caught up on.
        let later = begun + Duration::from_secs(60);
        let admitted = (0..99).filter(|_| {
            let admits = scheduler.admits(Work::Step, later, not_asked, || false);
            if admits {
                scheduler.done(Work::Step, step);
            }
            admits
        });
        assert_eq!(admitted.count(), 3, "a fifth of 50 ms");
    }

    #[test]
    fn requests_take_turns_where_a_run_is_replayed() {
        for kind in [UpkeepScheduler::Gate, UpkeepScheduler::Share] {
            let scheduler = Scheduler::new(kind);
            scheduler.by_turns();
            let admits = |pressed| {
                scheduler.admits(Work::Step, Instant::now(), || Some(Duration::ZERO), || pressed)
            };
            let found: Vec<bool> = (0..4).map(|_| admits(false)).collect();
            assert_eq!(found, [false, true, false, true]);
            assert!(admits(true) && admits(true), "what is pressed is never put off");
            assert_eq!(scheduler.counted().put_off, 2);
        }
    }

    // After a step whose thread had no core for seconds, none was admitted for ten.
    #[test]
    fn time_in_which_a_step_had_no_core_is_not_made_up_for() {
        let share = Scheduler::new(UpkeepScheduler::Share);
        let begun = Instant::now();
        let admits = |ms| share.admits(Work::Step, begun + ms * MS, not_asked, || false);
        assert!(admits(0));
        share.done(Work::Step, 2000 * MS);
        assert!(!admits(40) && admits(100));
        let gate = Scheduler::new(UpkeepScheduler::Gate);
        let admits = |ms| gate.admits(Work::Step, begun, || Some(ms * MS), || false);
        gate.done(Work::Step, 2000 * MS);
        assert!(!admits(40) && admits(60), "what is read ahead lasts for longer than a step");
    }
}
