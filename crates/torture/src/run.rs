//! One seed: a life, and what is told of one that failed.

use crate::life::{Life, Stop};
use crate::plan::{Limits, Plan};
use crate::regions::{self, has_regions};
use crate::report::Counts;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The finding of a seed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The operation that failed.
    pub operation: u64,
    /// The expected and the actual state.
    pub what: String,
    /// The settings of the life.
    pub settings: String,
    /// The last operations.
    pub last: Vec<String>,
    /// The parts that were left out to find it, if any.
    pub limits: Limits,
    /// It does not end, and nothing is known of its operations.
    pub hangs: bool,
}

impl Failure {
    /// A life that never ends.
    pub(crate) fn hang(seed: u64, limits: &Limits) -> Self {
        Self {
            seed,
            operation: 0,
            what: "the life does not end: a verb waits for something that never comes".to_owned(),
            settings: settings(&Plan::new(seed, limits)),
            last: Vec::new(),
            limits: limits.clone(),
            hangs: true,
        }
    }
}

thread_local! {
    /// The place at which the thread that runs a life has panicked.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static LIVING: RefCell<bool> = const { RefCell::new(false) };
}

/// Keeps panics of lives from being printed: they are failures that are told like others.
pub(crate) fn catch_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !LIVING.with_borrow(|living| *living) {
                return before(info);
            }
            let place = info.location().map(|at| format!("{}:{}", at.file(), at.line()));
            let text = info.payload();
            let text = text.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| info.payload().downcast_ref::<&str>().copied());
            let text = text.unwrap_or("no message");
            let what = format!("panic at {}: {text}", place.unwrap_or_default());
            PANIC.with_borrow_mut(|panic| *panic = Some(what));
        }));
    });
}

/// Runs a seed and adds to the counts.
pub fn run(seed: u64, limits: &Limits, counts: &mut Counts) -> Result<(), Box<Failure>> {
    catch_panics();
    let plan = Plan::new(seed, limits);
    let settings = settings(&plan);
    counts.seeds += 1;
    let mut life = Life::new(plan, counts);
    LIVING.with_borrow_mut(|living| *living = true);
    let lived = catch_unwind(AssertUnwindSafe(|| match life.live() {
        Ok(()) | Err(Stop::Over) if has_regions(seed, limits) => Ok(regions::live(seed, limits)?),
        lived => lived,
    }));
    LIVING.with_borrow_mut(|living| *living = false);
    let what = match lived {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(Stop::Over)) => {
            life.finish_counts();
            return Ok(());
        }
        Ok(Err(Stop::Failed(what))) => what,
        Err(_) => PANIC.with_borrow_mut(Option::take).unwrap_or_else(|| "a panic".to_owned()),
    };
    let failure = Failure {
        seed,
        operation: life.operation,
        what,
        settings,
        last: life.last.iter().cloned().collect(),
        limits: limits.clone(),
        hangs: false,
    };
    // The remains of a panic may panic again; that is worth their memory.
    std::mem::forget(life);
    Err(Box::new(failure))
}

fn settings(plan: &Plan) -> String {
    let tables: Vec<String> = plan
        .tables
        .iter()
        .map(|table| {
            let spec = &table.spec;
            let rows = spec.num_embeddings.map_or("grows".to_owned(), |n| format!("{n} rows"));
            format!(
                "{} {} dim {} {} {} {rows} {} keys{}",
                spec.name,
                spec.storage.name(),
                spec.embedding_dim,
                spec.dtype.name(),
                spec.optimizer.kind.name(),
                table.keys,
                if table.late > 0 { " late" } else { "" }
            )
        })
        .collect();
    format!(
        "{:?}, page {}, segment {}, memory {:?} %, max_disk {:?}, capacity {:?}, keep {}, {:?}, \
         window {} ({:?} bytes, group {}), batch {}, pins {}, journals of {}, {} operations; {}",
        plan.kind,
        plan.page_bytes,
        plan.segment_bytes,
        plan.memory_percent,
        plan.max_disk_bytes,
        plan.capacity,
        plan.keep,
        plan.policy,
        plan.window,
        plan.window_bytes,
        plan.window_group,
        plan.batch,
        plan.pins,
        plan.journal_bytes_min,
        plan.operations,
        tables.join("; ")
    )
}
