//! Requests that are queued and run one after the other: `MULTI`, `EXEC`, `DISCARD`.
//!
//! Clients that send several requests at a time do so between the two by default. They run in
//! their order, and `EXEC` is answered with an array of their replies. Requests of others may run
//! between them, and one that fails does not take back those before it.

use super::routing::check_names;
use super::{Call, Command, Outcome, shown};
use crate::options::Options;
use crate::refusal::Refusal;
use crate::resp::Arguments;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All queues of a server take at most so many times what one may take, and no more than requests
/// and replies of all connections may.
const QUEUES: usize = 16;

/// Memory of all queues of a server. Relaxed: it orders nothing.
#[derive(Debug, Default)]
pub(crate) struct Queued(AtomicUsize);

/// A queue's part of the memory of all, given back with the queue.
#[derive(Debug)]
struct Part {
    all: Arc<Queued>,
    bytes: usize,
}

impl Part {
    /// Takes more, where all together stay within `most`.
    fn grow(&mut self, bytes: usize, most: usize) -> bool {
        let fits = |all: usize| all.checked_add(bytes).filter(|all| *all <= most);
        let grown = self.all.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        self.bytes += if grown { bytes } else { 0 };
        grown
    }

    fn release(&mut self) {
        self.all.0.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.release();
    }
}

/// Requests since `MULTI`.
#[derive(Debug)]
pub(crate) struct Queue {
    part: Part,
    bytes: Vec<u8>,
    arguments: Vec<Range<u32>>,
    /// The ends of the arguments of each request.
    ends: Vec<usize>,
    /// Whether a request was refused: none of them will run.
    has_failed: bool,
    /// Number of requests that have run.
    run: usize,
}

impl Queue {
    fn new(all: Arc<Queued>) -> Self {
        Self {
            part: Part { all, bytes: 0 },
            bytes: Vec::new(),
            arguments: Vec::new(),
            ends: Vec::new(),
            has_failed: false,
            run: 0,
        }
    }

    /// Takes memory for one more request.
    ///
    /// *Errors*: where this queue, or all queues together, would take more than they may.
    fn grow(&mut self, bytes: usize, options: &Options) -> Outcome {
        let most = options.max_request_bytes;
        if self.part.bytes + bytes > most {
            return Err(Refusal::new(format!(
                "more than {most} bytes between MULTI and EXEC; send them in parts"
            )));
        }
        let most = most.saturating_mul(QUEUES).min(options.client_memory());
        if !self.part.grow(bytes, most) {
            return Err(Refusal::new(format!(
                "more than {most} bytes between MULTI and EXEC of all connections ({QUEUES} times \
                 --max-request-bytes, and at most --client-memory); try again when others have \
                 sent EXEC, send the requests without MULTI, or start the server with a larger \
                 --max-request-bytes"
            )));
        }
        Ok(())
    }

    /// None of its requests will run, so that it keeps none.
    pub(crate) fn fail(&mut self) {
        self.has_failed = true;
        (self.bytes, self.arguments, self.ends) = Default::default();
        self.part.release();
    }

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
}

/// Commands that run at once between `MULTI` and `EXEC`.
const AT_ONCE: [&str; 6] = ["EXEC", "DISCARD", "MULTI", "WATCH", "QUIT", "RESET"];
/// Commands about the connection, whose replies would change in the midst of an array.
const ALONE: [&str; 2] = ["HELLO", "AUTH"];

/// Whether a request is to be queued now.
pub(super) fn is_queued(call: &Call<'_>, command: &Command) -> bool {
    call.session.queue.is_some() && !AT_ONCE.contains(&command.name)
}

/// Queues a request. One that is refused has none of them run.
pub(super) fn queue(call: &mut Call<'_>, command: &Command) -> Outcome {
    if ALONE.contains(&command.name) {
        return Err(Refusal::new(format!(
            "{} is not allowed between MULTI and EXEC",
            command.name
        )));
    }
    check_names(call, command)?;
    let (arguments, options) = (call.arguments, &call.shared.options);
    let Some(queue) = &mut call.session.queue else { return Ok(()) };
    if !queue.has_failed {
        queue.grow(bytes_of(arguments), options)?;
        queue.push(arguments);
    }
    call.reply(|writer| writer.simple("QUEUED"));
    Ok(())
}

/// Bytes of a queue that a request takes.
fn bytes_of(arguments: Arguments<'_>) -> usize {
    let bytes = |argument: &[u8]| argument.len() + size_of::<Range<u32>>();
    arguments.from(0).map(bytes).sum::<usize>() + size_of::<usize>()
}

/// Notes that a request could not be queued.
pub(super) fn fail(call: &mut Call<'_>) {
    if let Some(queue) = &mut call.session.queue {
        queue.fail();
    }
}

/// `MULTI`
pub(super) fn multi(call: &mut Call<'_>) -> Outcome {
    if call.session.queue.is_some() {
        return Err(Refusal::new("MULTI calls can not be nested"));
    }
    call.session.queue = Some(Box::new(Queue::new(call.shared.queued.clone())));
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
