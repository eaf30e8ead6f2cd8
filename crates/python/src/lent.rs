//! Memory of callers that the engine uses without the interpreter lock.
//!
//! NumPy's arrays are lent by objects, and two objects may have the same memory without knowing of
//! each other: tensors of PyTorch, views of one `bytearray`. So what calls under way read and fill
//! is noted by addresses here. Every span is taken and given back under the interpreter lock; what
//! a call takes is not resized meanwhile, because NumPy moves no array that something refers to.

use crate::error::misuse;
use numpy::{Element, PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyWeakrefReference;
use std::sync::{Mutex, PoisonError};

/// The message about an array to fill that is not the call's alone.
pub(crate) const OVERLAPS: &str =
    "out overlaps an array that this call or another thread is using; give each its own";

/// The message about an argument that another call fills.
pub(crate) fn being_filled(name: &str) -> String {
    let verb = if name.ends_with('s') { "overlap" } else { "overlaps" };
    format!("{name} {verb} an array that another call is filling; wait for it, or pass a copy")
}

/// Memory that calls under way use, of this process: a forked child has no other threads.
static IN_USE: Mutex<InUse> = Mutex::new(InUse { process: 0, last: OWN, spans: Vec::new() });

/// A number that no call has: that of spans which are not noted yet.
const OWN: u64 = 0;

struct InUse {
    process: u32,
    last: u64,
    spans: Vec<Span>,
}

/// A stretch of memory that a call reads or fills.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    begin: usize,
    end: usize,
    filled: bool,
    call: u64,
    /// The caller's argument.
    name: &'static str,
}

/// The arrays of one call. Overlaps among them are refused by [`Arrays::lend`].
#[derive(Default)]
pub(crate) struct Arrays<'py> {
    spans: Vec<Span>,
    /// Arrays that the call does not look at again.
    copied: Vec<Span>,
    kept: Vec<Bound<'py, PyWeakrefReference>>,
}

/// Memory that is a call's until this is dropped.
pub(crate) struct Loan<'py> {
    call: Option<u64>,
    /// NumPy refuses to resize an array to which there are weak references.
    _kept: Vec<Bound<'py, PyWeakrefReference>>,
}

impl<'py> Arrays<'py> {
    /// Adds keys that were copied: nothing may fill their memory meanwhile, and the call's own
    /// arrays to fill must not overlap it. Afterwards it is anybody's.
    pub(crate) fn copied(&mut self, begin: usize, bytes: usize) {
        self.copied.extend(span(begin, bytes, false, "keys"));
    }

    /// Adds an array that the engine reads.
    pub(crate) fn read<T: Element>(
        &mut self,
        array: &Bound<'py, PyArrayDyn<T>>,
        name: &'static str,
    ) -> PyResult<()> {
        self.array(array, false, name)
    }

    /// Adds an array that the engine fills.
    pub(crate) fn fill<T: Element>(&mut self, array: &Bound<'py, PyArrayDyn<T>>) -> PyResult<()> {
        self.array(array, true, "out")
    }

    fn array<T: Element>(
        &mut self,
        array: &Bound<'py, PyArrayDyn<T>>,
        filled: bool,
        name: &'static str,
    ) -> PyResult<()> {
        let bytes = array.len() * size_of::<T>();
        self.spans.extend(span(array.data().addr(), bytes, filled, name));
        let mut owner = array.as_untyped().clone();
        loop {
            self.kept.push(PyWeakrefReference::new(&owner)?);
            let Ok(base) = owner.getattr("base")?.cast_into::<PyUntypedArray>() else {
                return Ok(());
            };
            owner = base;
        }
    }

    /// Takes the memory for the call.
    ///
    /// Errors: `MisuseError` when an array to fill overlaps another one of the call, or of a call
    /// on another thread.
    pub(crate) fn lend(self, py: Python<'py>) -> PyResult<Loan<'py>> {
        match take(self.spans, &self.copied) {
            Ok(call) => Ok(Loan { call, _kept: self.kept }),
            Err(what) => Err(misuse(py, what)),
        }
    }
}

/// Notes the spans of a call, or says what overlaps. No Python runs under the lock: it would let
/// another thread have the interpreter, which then waits here and never gives it back.
fn take(spans: Vec<Span>, copied: &[Span]) -> Result<Option<u64>, String> {
    let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if in_use.process != process {
        *in_use = InUse { process, last: OWN, spans: Vec::new() };
    }
    let mut all = [&spans, copied, &in_use.spans].concat();
    if let Some(pair) = overlap(&mut all) {
        return Err(refusal(pair));
    }
    if spans.is_empty() {
        return Ok(None);
    }
    in_use.last += 1;
    let call = in_use.last;
    in_use.spans.extend(spans.into_iter().map(|span| Span { call, ..span }));
    Ok(Some(call))
}

/// The message about two spans that overlap, at least one of which is of the call at hand.
fn refusal(pair: [Span; 2]) -> String {
    let own = pair.iter().filter(|span| span.call == OWN);
    match own.clone().find(|span| span.filled).or(own.clone().next()) {
        Some(Span { filled: false, name, .. }) => being_filled(name),
        _ => OVERLAPS.to_owned(),
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
            in_use.spans.retain(|span| span.call != call);
        }
    }
}

/// No span for no bytes.
fn span(begin: usize, bytes: usize, filled: bool, name: &'static str) -> Option<Span> {
    (bytes > 0).then_some(Span { begin, end: begin + bytes, filled, call: OWN, name })
}

/// Two spans that overlap, one of which is filled.
fn overlap(spans: &mut [Span]) -> Option<[Span; 2]> {
    spans.sort_unstable();
    let (mut longest, mut longest_filled): (Option<Span>, Option<Span>) = (None, None);
    for span in spans {
        let reaches = |before: &Span| span.begin < before.end;
        let before = if span.filled { longest } else { longest_filled };
        if let Some(before) = before.filter(reaches) {
            return Some([before, *span]);
        }
        let further = |before: Option<Span>| before.filter(|b| b.end >= span.end).or(Some(*span));
        longest = further(longest);
        if span.filled {
            longest_filled = further(longest_filled);
        }
    }
    None
}
