//! Commands that change rows, and make changes durable.

use super::arguments::{check_count, check_keys, non_finite, number, packed_keys, rows, step};
use super::routing::{Named, OneSlot};
use super::{Call, Outcome, shown, syntax};
use crate::catalog::Table;
use crate::refusal::Refusal;
use crate::timer::Task;
use embedrock_core::optimizer::Hyper;
use embedrock_core::{NonFinite, PutBatch, TableId, UpdateBatch};

/// `SET table:key row`
pub(super) fn set(call: &mut Call<'_>) -> Outcome {
    begin(call)?;
    if call.arguments.len() != 3 {
        return Err(Refusal::new(
            "SET takes a key and its row, and no options: rows do not expire",
        ));
    }
    let (named, key) = Named::find_key(call.tables, call.cluster, call.argument(1)?)?;
    let table = named.table;
    let row = call.argument(2)?;
    let values = &mut call.scratch.values;
    values.clear();
    rows("a row", table, 1, row, values)?;
    call.shared.store.put(&[put_batch(table.id, &[key], values, NonFinite::Refuse)])?;
    call.shared.metrics.rows_put.inc();
    call.done()
}

/// `MSET table:key row [table:key row ...]`
pub(super) fn mset(call: &mut Call<'_>) -> Outcome {
    begin(call)?;
    if call.arguments.len().is_multiple_of(2) {
        return Err(Refusal::new("MSET takes pairs of a key and its row"));
    }
    let count = call.arguments.len() / 2;
    check_count(count, call.shared.options.max_keys)?;
    let mut of_tables: Vec<(&Table, Vec<u64>, Vec<f32>)> = Vec::new();
    let mut slot = OneSlot::default();
    for pair in 0..count {
        let name = call.argument(1 + 2 * pair)?;
        let (named, key) = Named::find_key(call.tables, call.cluster, name)?;
        slot.check(call.cluster, named.bucket)?;
        let table = named.table;
        let row = call.argument(2 + 2 * pair)?;
        let at = match of_tables.iter().position(|(other, ..)| other.id == table.id) {
            Some(at) => at,
            None => {
                of_tables.push((table, Vec::new(), Vec::new()));
                of_tables.len() - 1
            }
        };
        let (_, keys, values) = &mut of_tables[at];
        keys.push(key);
        rows("a row", table, 1, row, values)?;
    }
    let batches: Vec<PutBatch<'_>> = of_tables
        .iter()
        .map(|(table, keys, values)| put_batch(table.id, keys, values, NonFinite::Refuse))
        .collect();
    call.shared.store.put(&batches)?;
    call.shared.metrics.rows_put.inc_by(count as u64);
    call.done()
}

/// `EMB.PUSH table keys rows [NONFINITE REFUSE|SKIP|APPLY]`
pub(super) fn push(call: &mut Call<'_>) -> Outcome {
    begin(call)?;
    let table = packed(call, "rows")?;
    let mut policy = NonFinite::default();
    for at in (4..call.arguments.len()).step_by(2) {
        let (name, value) = option(call, at)?;
        match name.to_ascii_uppercase().as_slice() {
            b"NONFINITE" => policy = non_finite(value)?,
            _ => return Err(unknown_option("EMB.PUSH", name)),
        }
    }
    let batch = put_batch(table.id, &call.scratch.keys, &call.scratch.values, policy);
    let report = call.shared.store.put(&[batch])?;
    call.shared.metrics.rows_put.inc_by(report.rows);
    call.reply(|writer| {
        writer.map(2);
        writer.bulk(b"rows");
        writer.integer(report.rows as i64);
        writer.bulk(b"skipped");
        writer.integer(report.skipped as i64);
    });
    Ok(())
}

/// `EMB.UPDATE table keys gradients LR lr [option value ...]`
pub(super) fn update(call: &mut Call<'_>) -> Outcome {
    begin(call)?;
    let table = packed(call, "gradients")?;
    let kind = call.shared.store.table_info(table.id)?.spec.optimizer.kind;
    let mut hyper = kind.default_hyper();
    let (mut policy, mut step, mut has_lr) = (NonFinite::default(), None, false);
    for at in (4..call.arguments.len()).step_by(2) {
        let (name, value) = option(call, at)?;
        match name.to_ascii_uppercase().as_slice() {
            b"NONFINITE" => policy = non_finite(value)?,
            b"STEP" => step = Some(number("STEP", value)?),
            b"NESTEROV" => hyper.nesterov = number::<u8>("NESTEROV", value)? != 0,
            option => {
                let field = field_of(&mut hyper, option)
                    .ok_or_else(|| unknown_option("EMB.UPDATE", name))?;
                *field = number(&shown(name), value)?;
                has_lr |= option == b"LR";
            }
        }
    }
    if !has_lr {
        return Err(Refusal::new("EMB.UPDATE takes LR and the learning rate"));
    }
    let report = call.shared.store.update(&[UpdateBatch {
        table: table.id,
        keys: &call.scratch.keys,
        gradients: &call.scratch.values,
        hyper,
        non_finite: policy,
        step,
    }])?;
    call.shared.metrics.rows_updated.inc_by(report.rows);
    call.reply(|writer| {
        writer.map(3);
        let counts = [report.rows, report.skipped, report.saturated];
        for (name, count) in ["rows", "skipped", "saturated"].into_iter().zip(counts) {
            writer.bulk(name.as_bytes());
            writer.integer(count as i64);
        }
    });
    Ok(())
}

/// `EMB.COMMIT [step]`
pub(super) fn commit(call: &mut Call<'_>) -> Outcome {
    check_writable(call)?;
    let step = match call.arguments.len() {
        1 => None,
        2 => Some(step(call.argument(1)?)?),
        _ => return Err(syntax()),
    };
    call.begin_job(Task::Commit(step))
}

/// Refuses a server that only reads. Rows that the connection has asked for are read first: they
/// are as they were before this request.
fn begin(call: &mut Call<'_>) -> Outcome {
    check_writable(call)?;
    if call.pulls.is_waited_for(call.connection) {
        // No rows are lent, or the change could wait for them.
        let rows = call.pulls.read(&call.shared.store, None);
        call.shared.metrics.rows_read.inc_by(rows);
    }
    Ok(())
}

fn check_writable(call: &Call<'_>) -> Outcome {
    if call.shared.is_writable() {
        return Ok(());
    }
    Err(Refusal::coded(
        "READONLY",
        "this server only reads its store; start it with --writable to change rows",
    ))
}

/// Brings packed keys and their rows into the scratch memory.
fn packed<'a>(call: &mut Call<'a>, what: &str) -> Result<&'a Table, Refusal> {
    let (named, packed) = (call.named(1)?, call.argument(2)?);
    let table = named.table;
    check_count(packed.len() / 8, call.shared.options.max_keys)?;
    let given = call.argument(3)?;
    let (keys, values) = (&mut call.scratch.keys, &mut call.scratch.values);
    keys.clear();
    values.clear();
    packed_keys(packed, keys)?;
    check_keys(table, keys)?;
    named.check(call.cluster, keys)?;
    rows(what, table, keys.len(), given, values)?;
    Ok(table)
}

fn put_batch<'a>(
    table: TableId,
    keys: &'a [u64],
    values: &'a [f32],
    non_finite: NonFinite,
) -> PutBatch<'a> {
    PutBatch { table, keys, values, state: None, reset_state: false, non_finite }
}

fn field_of<'h>(hyper: &'h mut Hyper, name: &[u8]) -> Option<&'h mut f64> {
    Some(match name {
        b"LR" => &mut hyper.lr,
        b"EPS" => &mut hyper.eps,
        b"BETA1" => &mut hyper.beta1,
        b"BETA2" => &mut hyper.beta2,
        b"WEIGHT_DECAY" => &mut hyper.weight_decay,
        b"MOMENTUM" => &mut hyper.momentum,
        b"DAMPENING" => &mut hyper.dampening,
        b"LR_POWER" => &mut hyper.lr_power,
        b"L1" => &mut hyper.l1,
        b"L2" => &mut hyper.l2,
        b"BETA" => &mut hyper.beta,
        _ => return None,
    })
}

/// The option at a place of the request, and its value.
fn option<'a>(call: &Call<'a>, at: usize) -> Result<(&'a [u8], &'a [u8]), Refusal> {
    let name = call.argument(at)?;
    let value = call.arguments.get(at + 1);
    Ok((name, value.ok_or_else(|| Refusal::new(format!("{} has no value", shown(name))))?))
}

fn unknown_option(command: &str, name: &[u8]) -> Refusal {
    Refusal::new(format!("{command} has no option '{}'", shown(name)))
}
