//! Commands that move a server that reads to another commit of its store.

use super::arguments::step;
use super::{Call, Outcome};
use crate::refusal::Refusal;
use crate::timer::Task;

/// `EMB.REFRESH`
pub(super) fn refresh(call: &mut Call<'_>) -> Outcome {
    check_reader(call)?;
    call.begin_job(Task::Refresh)
}

/// `EMB.SWITCH step`
pub(super) fn switch(call: &mut Call<'_>) -> Outcome {
    check_reader(call)?;
    let step = step(call.argument(1)?)?;
    call.begin_job(Task::Switch(step))
}

fn check_reader(call: &Call<'_>) -> Outcome {
    if call.shared.is_writable() {
        return Err(Refusal::new(
            "this server writes to its store, and is at its newest state always: only one that \
             reads is refreshed or switched",
        ));
    }
    Ok(())
}
