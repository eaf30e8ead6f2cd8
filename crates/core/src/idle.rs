//! Threads that run in the time that others leave, and a measure of whether they run at all.
//!
//! If threads that compute together fill all cores, all of them wait for one that has to share its
//! core; a thread whose work is for later can wait instead. If others never leave a core, it would
//! wait for ever: threads that depend on it have to check.
#![cfg_attr(
    target_os = "linux",
    expect(unsafe_code, reason = "scheduling is set only by system calls on raw structures")
)]

use std::time::Duration;

/// Lets threads of other programs and of this one go before the calling one, from here on. If the
/// system has nothing like it, or refuses, the thread keeps its priority.
pub(crate) fn give_way() {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let watched = thread_number().is_some_and(|thread| Turns::of(thread).is_some());
        // SAFETY: `parameters` is a valid structure that lives through the call, which only reads
        // it; 0 is the calling thread. The second call takes numbers only.
        unsafe {
            // Linux schedules threads one by one. A thread of this class leaves its core as soon as
            // any other wants it; one with the lowest priority goes on to the end of its turn.
            let parameters: libc::sched_param = std::mem::zeroed();
            if !watched || libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) != 0
            {
                let _ = libc::setpriority(libc::PRIO_PROCESS, 0, 19);
            }
        }
    }
}

/// The system's number of the calling thread; `None` where [`Turns`] knows nothing.
pub(crate) fn thread_number() -> Option<u32> {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: the call has no arguments and only returns a number.
    return u32::try_from(unsafe { libc::gettid() }).ok();
    #[cfg(not(all(target_os = "linux", not(miri))))]
    None
}

/// The system's counters of a thread's turns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    /// It runs, or wants to.
    runs: bool,
    /// Number of times it has left its core because it had nothing to do, a read to wait for
    /// included.
    left: u64,
    /// Time it has run.
    ran: Duration,
}

impl Turns {
    /// Of a thread of this process; `None` when it has ended, and where the system does not say.
    pub(crate) fn of(thread: u32) -> Option<Self> {
        // proc(5). The time that a thread waits for a core is counted only once it has one.
        let read = |name| std::fs::read_to_string(format!("/proc/self/task/{thread}/{name}")).ok();
        let (status, times) = (read("status")?, read("schedstat")?);
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let ran = times.split_whitespace().next()?.parse().ok()?;
        Some(Self {
            runs: field("State:")?.trim_start().starts_with('R'),
            left: field("voluntary_ctxt_switches:")?.trim().parse().ok()?,
            ran: Duration::from_nanos(ran),
        })
    }

    /// Whether the thread wanted a core all the time since it was looked at before, so long ago,
    /// and had one for less than a fifth of it.
    pub(crate) fn starved_since(&self, before: &Self, passed: Duration) -> bool {
        let wanted = before.runs && self.runs && before.left == self.left;
        wanted && 5 * self.ran.saturating_sub(before.ran) < passed
    }
}
