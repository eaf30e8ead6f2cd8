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

/// What calls under way use, of this process: a forked child has no other threads.
static IN_USE: Mutex<InUse> = Mutex::new(InUse { process: 0, last: 0, spans: Vec::new() });

struct InUse {
    process: u32,
    last: u64,
    /// By call.
    spans: Vec<(u64, Span)>,
}

/// A stretch of memory that a call reads or fills.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    begin: usize,
    end: usize,
    filled: bool,
}

/// The arrays of one call. What they had overlapped is refused by [`Loan::begin`].
#[derive(Default)]
pub(crate) struct Arrays<'py> {
    spans: Vec<Span>,
    kept: Vec<Bound<'py, PyWeakrefReference>>,
}

/// Memory that is a call's until this is dropped.
pub(crate) struct Loan<'py> {
    call: Option<u64>,
    /// NumPy refuses to resize an array to which there are weak references.
    _kept: Vec<Bound<'py, PyWeakrefReference>>,
}

impl<'py> Arrays<'py> {
    /// Adds memory that was read already: the call's own arrays to fill must not overlap it.
    pub(crate) fn was_read(&mut self, begin: usize, bytes: usize) {
        self.add(begin, bytes, false);
    }

    /// Adds an array that the engine reads.
    pub(crate) fn read<T: Element>(&mut self, array: &Bound<'py, PyArrayDyn<T>>) -> PyResult<()> {
        self.array(array, false)
    }

    /// Adds an array that the engine fills.
    pub(crate) fn fill<T: Element>(&mut self, array: &Bound<'py, PyArrayDyn<T>>) -> PyResult<()> {
        self.array(array, true)
    }

    fn array<T: Element>(
        &mut self,
        array: &Bound<'py, PyArrayDyn<T>>,
        filled: bool,
    ) -> PyResult<()> {
        self.add(array.data().addr(), array.len() * size_of::<T>(), filled);
        let mut owner = array.as_untyped().clone();
        loop {
            self.kept.push(PyWeakrefReference::new(&owner)?);
            let Ok(base) = owner.getattr("base")?.cast_into::<PyUntypedArray>() else {
                return Ok(());
            };
            owner = base;
        }
    }

    fn add(&mut self, begin: usize, bytes: usize, filled: bool) {
        if bytes > 0 {
            self.spans.push(Span { begin, end: begin + bytes, filled });
        }
    }

    /// Takes the memory for the call.
    ///
    /// Errors: `MisuseError` when an array to fill overlaps another one of the call, or of a call
    /// on another thread.
    pub(crate) fn lend(self, py: Python<'py>) -> PyResult<Loan<'py>> {
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if in_use.process != process {
            *in_use = InUse { process, last: 0, spans: Vec::new() };
        }
        let mut all = self.spans.clone();
        all.extend(in_use.spans.iter().map(|(_, span)| *span));
        if overlap(&mut all) {
            return Err(misuse(
                py,
                "out overlaps an array that this call or another thread is using; give each its \
                 own",
            ));
        }
        if self.spans.is_empty() {
            return Ok(Loan { call: None, _kept: self.kept });
        }
        in_use.last += 1;
        let call = in_use.last;
        in_use.spans.extend(self.spans.into_iter().map(|span| (call, span)));
        Ok(Loan { call: Some(call), _kept: self.kept })
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
            in_use.spans.retain(|(of, _)| *of != call);
        }
    }
}

/// Whether something that is filled overlaps anything else.
fn overlap(spans: &mut [Span]) -> bool {
    spans.sort_unstable();
    let (mut end_of_all, mut end_of_filled) = (0, 0);
    for span in spans {
        if span.begin < end_of_filled || (span.filled && span.begin < end_of_all) {
            return true;
        }
        end_of_all = end_of_all.max(span.end);
        if span.filled {
            end_of_filled = end_of_filled.max(span.end);
        }
    }
    false
}
