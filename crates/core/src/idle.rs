//! Threads that have what time others leave, and whether they have any.
//!
//! Where there are no more cores than threads that compute together, all of them wait for one that
//! has to share its core; a thread that works for later can wait instead. Where others never leave
//! a core, it would wait for ever: who depends on it has to look.
#![cfg_attr(
    target_os = "linux",
    expect(unsafe_code, reason = "scheduling is set only by system calls on raw structures")
)]

/// Lets threads of other programs and of this one go before the calling one, from here on. Where
/// the system has nothing like it, or refuses, the thread goes on as eagerly as others.
pub(crate) fn give_way() {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: `parameters` is a valid structure that lives through the call, which only reads it;
    // 0 is the calling thread. The second call takes numbers only.
    unsafe {
        // Linux schedules threads one by one. A thread of this class leaves its core as soon as any
        // other wants it; one with the lowest priority goes on to the end of its turn.
        let parameters: libc::sched_param = std::mem::zeroed();
        if libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) != 0 {
            let _ = libc::setpriority(libc::PRIO_PROCESS, 0, 19);
        }
    }
}

/// The system's number of the calling thread; `None` where [`core_wait_ns`] knows nothing.
pub(crate) fn thread_number() -> Option<u32> {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: the call has no arguments and only returns a number.
    return u32::try_from(unsafe { libc::gettid() }).ok();
    #[cfg(not(all(target_os = "linux", not(miri))))]
    None
}

/// Nanoseconds that a thread of this process wanted to run and had no core, since it began. `None`
/// when it has ended, and where the system does not say.
pub(crate) fn core_wait_ns(thread: u32) -> Option<u64> {
    // proc(5): time run, time waited, turns.
    let counted = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    counted.split_whitespace().nth(1)?.parse().ok()
}
