//! Requests that are queued and run one after the other: `MULTI`, `EXEC`, `DISCARD`.
//!
//! Clients that send several requests at a time do so between the two by default. They run in
//! their order, and `EXEC` is answered with an array of their replies. Requests of others may run
//! between them, and one that fails does not take back those before it.

use super::routing::check_names;
use super::{Call, Command, Outcome, shown};
use crate::refusal::Refusal;
use crate::resp::Arguments;
use std::ops::Range;

/// Requests since `MULTI`.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    bytes: Vec<u8>,
    arguments: Vec<Range<u32>>,
    /// Where the arguments of each request end.
    ends: Vec<usize>,
    /// Whether a request was refused: none of them will run.
    has_failed: bool,
    /// How many have run.
    run: usize,
}

impl Queue {
    fn push(&mut self, arguments: Arguments<'_>) {
        for argument in arguments.from(0) {
            let begin = self.bytes.len() as u32;
            self.bytes.extend(argument);
            self.arguments.push(begin..self.bytes.len() as u32);
        }
        self.ends.push(self.arguments.len());
    }

    /// The next request to run, once it is the turn of all of them.
    pub(crate) fn next(&mut self) -> Option<Arguments<'_>> {
        let end = *self.ends.get(self.run)?;
        let begin = self.run.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.run += 1;
        Some(Arguments::new(&self.bytes, &self.arguments[begin..end]))
    }

    /// Memory that it takes.
    fn bytes(&self) -> usize {
        let ranges = self.arguments.len() * size_of::<Range<u32>>();
        self.bytes.len() + ranges + self.ends.len() * size_of::<usize>()
    }
}

/// Commands that run at once between `MULTI` and `EXEC`.
const AT_ONCE: [&str; 6] = ["EXEC", "DISCARD", "MULTI", "WATCH", "QUIT", "RESET"];
/// Those that are about the connection, whose replies would change in the midst of an array.
const ALONE: [&str; 2] = ["HELLO", "AUTH"];

/// Whether a request is to be queued now.
pub(super) fn is_queued(call: &Call<'_>, command: &Command) -> bool {
    call.session.queue.is_some() && !AT_ONCE.contains(&command.name)
}

/// Queues a request. One that is refused has none of them run.
pub(super) fn queue(call: &mut Call<'_>, command: &Command) -> Outcome {
    let most = call.shared.options.max_request_bytes;
    let size: usize = call.arguments.from(0).map(|argument| argument.len() + 16).sum();
    let held = call.session.queue.as_ref().map_or(0, |queue| queue.bytes());
    let refused = match () {
        () if ALONE.contains(&command.name) => {
            Err(Refusal::new(format!("{} is not allowed between MULTI and EXEC", command.name)))
        }
        () if held + size > most => Err(Refusal::new(format!(
            "more than {most} bytes between MULTI and EXEC; send them in parts"
        ))),
        () => check_names(call, command),
    };
    let arguments = call.arguments;
    let Some(queue) = &mut call.session.queue else { return Ok(()) };
    if refused.is_ok() && !queue.has_failed {
        queue.push(arguments);
    }
    queue.has_failed |= refused.is_err();
    refused?;
    call.reply(|writer| writer.simple("QUEUED"));
    Ok(())
}

/// Notes that a request could not be queued.
pub(super) fn fail(call: &mut Call<'_>) {
    if let Some(queue) = &mut call.session.queue {
        queue.has_failed = true;
    }
}

/// `MULTI`
pub(super) fn multi(call: &mut Call<'_>) -> Outcome {
    if call.session.queue.is_some() {
        return Err(Refusal::new("MULTI calls can not be nested"));
    }
    call.session.queue = Some(Box::default());
    call.done()
}

/// `EXEC`: what is queued runs next, before what the client sends behind it.
pub(super) fn exec(call: &mut Call<'_>) -> Outcome {
    let queue = call.session.queue.take().ok_or_else(|| Refusal::new("EXEC without MULTI"))?;
    if queue.has_failed {
        return Err(Refusal::coded(
            "EXECABORT",
            "Transaction discarded because of previous errors.",
        ));
    }
    let count = queue.ends.len();
    call.reply(|writer| writer.array(count));
    call.session.running = Some(queue);
    Ok(())
}

/// `DISCARD`
pub(super) fn discard(call: &mut Call<'_>) -> Outcome {
    match call.session.queue.take() {
        Some(_) => call.done(),
        None => Err(Refusal::new("DISCARD without MULTI")),
    }
}

/// `WATCH`, which is refused; `UNWATCH` has nothing to do.
pub(super) fn watch(call: &mut Call<'_>) -> Outcome {
    match call.argument(0)?.eq_ignore_ascii_case(b"UNWATCH") {
        true => call.done(),
        false => Err(Refusal::new(format!(
            "{} is not there: requests of others may run between those of EXEC",
            shown(&call.argument(0)?.to_ascii_uppercase())
        ))),
    }
}
