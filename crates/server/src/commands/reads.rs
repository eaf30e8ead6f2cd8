//! Commands that read rows, or say which will be read.

use super::arguments::{check_count, check_keys, key, packed_keys, split_key};
use super::routing::{Named, OneSlot};
use super::{Call, Outcome};
use crate::catalog::Table;
use crate::hot::KEYS_MAX;
use crate::pulls::{Asking, Form, HEADER_BYTES, NO_ROW};
use crate::refusal::Refusal;

/// Bytes around a row in an array of rows.
const AROUND_ROW: usize = 16;

/// `EMB.PULL table key [key ...]`
pub(super) fn pull(call: &mut Call<'_>) -> Outcome {
    let named = call.named(1)?;
    let keys = call.arguments.from(2);
    check_count(keys.len(), call.shared.options.max_keys)?;
    ask(call, Form::Pull, named, |asking| {
        for text in keys {
            asking.keys().push(key(text)?);
        }
        Ok(())
    })
}

/// `EMB.PULLB table keys`
pub(super) fn pull_packed(call: &mut Call<'_>) -> Outcome {
    let (named, keys) = (call.named(1)?, call.argument(2)?);
    check_count(keys.len() / 8, call.shared.options.max_keys)?;
    ask(call, Form::Pull, named, |asking| packed_keys(keys, asking.keys()))
}

/// `GET table:key`. A key that the table cannot have has no row, as for any client of Redis.
pub(super) fn get(call: &mut Call<'_>) -> Outcome {
    let (named, key) = Named::find_key(call.tables, call.cluster, call.argument(1)?)?;
    if !named.table.has_id(key) {
        call.shared.metrics.rows_read.inc();
        call.shared.metrics.rows_missing.inc();
        call.reply(|writer| writer.null());
        return Ok(());
    }
    ask(call, Form::Value, named, |asking| {
        asking.keys().push(key);
        Ok(())
    })
}

/// Asks for rows of one table.
fn ask<'a>(
    call: &mut Call<'a>,
    form: Form,
    named: Named<'a>,
    add: impl FnOnce(&mut Asking<'_>) -> Outcome,
) -> Outcome {
    let (table, cluster) = (named.table, call.cluster);
    let mut asking = call.pulls.begin();
    let most = call.shared.options.max_reply_bytes;
    let added = add(&mut asking)
        .and_then(|()| check_keys(table, asking.added()))
        .and_then(|()| named.check(cluster, asking.added()))
        .and_then(|()| check_reply(asking.count() * (table.row_bytes() + 4) + HEADER_BYTES, most));
    if let Err(refusal) = added {
        asking.cancel();
        return Err(refusal);
    }
    asking.end_part(table);
    let (output, protocol) = (&mut call.session.output, call.session.protocol);
    call.session.promised += asking.ask(call.connection, form, Vec::new(), output, protocol);
    Ok(())
}

/// `MGET table:key [table:key ...]`
pub(super) fn mget(call: &mut Call<'_>) -> Outcome {
    let names = call.arguments.from(1);
    check_count(names.len(), call.shared.options.max_keys)?;
    let mut order = Vec::with_capacity(names.len());
    let (cluster, mut slot) = (call.cluster, OneSlot::default());
    // Keys of the first table go where they are read from; those of others follow.
    let mut asking = call.pulls.begin();
    let mut others: Vec<(&Table, Vec<u64>)> = Vec::new();
    let mut first: Option<&Table> = None;
    // Names have the same table, mostly.
    let mut last: Option<(&[u8], Named<'_>)> = None;
    let mut bytes = 0;
    let mut add = |text| {
        let (name, digits) = split_key(text)?;
        let named = match last {
            Some((before, named)) if before == name => named,
            _ => Named::find(call.tables, name)?,
        };
        last = Some((name, named));
        let (table, key) = (named.table, key(digits)?);
        slot.check(cluster, named.bucket)?;
        named.check_key(cluster, text, key)?;
        if !table.has_id(key) {
            order.push(NO_ROW);
            return Ok(());
        }
        bytes += table.row_bytes() + AROUND_ROW;
        if first.get_or_insert(table).id == table.id {
            order.push((0, asking.count() as u32));
            asking.keys().push(key);
            return Ok(());
        }
        let at = match others.iter().position(|(other, _)| other.id == table.id) {
            Some(at) => at,
            None => {
                others.push((table, Vec::new()));
                others.len() - 1
            }
        };
        let (_, keys) = &mut others[at];
        order.push((at as u32 + 1, keys.len() as u32));
        keys.push(key);
        Ok(())
    };
    let mut added: Outcome = Ok(());
    for text in names {
        added = add(text);
        if added.is_err() {
            break;
        }
    }
    let most = call.shared.options.max_reply_bytes;
    if let Err(refusal) = added.and_then(|()| check_reply(bytes, most)) {
        asking.cancel();
        return Err(refusal);
    }
    if let Some(table) = first {
        asking.end_part(table);
    }
    let beyond = order.iter().filter(|place| **place == NO_ROW).count() as u64;
    call.shared.metrics.rows_read.inc_by(beyond);
    call.shared.metrics.rows_missing.inc_by(beyond);
    for (table, keys) in &others {
        asking.keys().extend(keys);
        asking.end_part(table);
    }
    let (output, protocol) = (&mut call.session.output, call.session.protocol);
    call.session.promised += asking.ask(call.connection, Form::Values, order, output, protocol);
    Ok(())
}

fn check_reply(bytes: usize, most: usize) -> Outcome {
    if bytes > most {
        return Err(Refusal::new(format!(
            "a reply of {bytes} bytes, expected at most {most}; ask for fewer keys at a time"
        )));
    }
    Ok(())
}

/// `EMB.LOOKAHEAD table keys`
pub(super) fn lookahead(call: &mut Call<'_>) -> Outcome {
    let (named, packed) = (call.named(1)?, call.argument(2)?);
    check_count(packed.len() / 8, call.shared.options.max_keys)?;
    let keys = &mut call.scratch.keys;
    keys.clear();
    packed_keys(packed, keys)?;
    check_keys(named.table, keys)?;
    named.check(call.cluster, keys)?;
    call.shared.store.lookahead(named.table.id, keys)?;
    call.session.has_announced = true;
    call.done()
}

/// `EMB.HOT table keys`
pub(super) fn hot(call: &mut Call<'_>) -> Outcome {
    let (named, packed) = (call.named(1)?, call.argument(2)?);
    check_count(packed.len() / 8, call.shared.options.max_keys.min(KEYS_MAX))?;
    let keys = &mut call.scratch.keys;
    keys.clear();
    packed_keys(packed, keys)?;
    check_keys(named.table, keys)?;
    named.check(call.cluster, keys)?;
    if named.table.is_direct && !call.shared.is_writable() {
        return Err(Refusal::new(
            "rows on persistent memory move where the server writes: start it with --writable",
        ));
    }
    if !call.shared.hot.send(named.table.id, keys) {
        return Err(Refusal::new("too many hot sets of other tables wait; try again"));
    }
    call.done()
}
