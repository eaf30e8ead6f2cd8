//! Commands that read rows, or say which will be read.

use super::arguments::{check_count, check_keys, key, packed_keys, split_key};
use super::{Call, Outcome, find_table};
use crate::catalog::Table;
use crate::hot::KEYS_MAX;
use crate::pulls::{Asking, Form, HEADER_BYTES};
use crate::refusal::Refusal;

/// Bytes around a row in an array of rows.
const AROUND_ROW: usize = 16;

/// `EMB.PULL table key [key ...]`
pub(super) fn pull(call: &mut Call<'_>) -> Outcome {
    let table = call.table(1)?;
    let keys = call.arguments.from(2);
    check_count(keys.len(), call.shared.options.max_keys)?;
    ask(call, Form::Pull, table, |asking| {
        for text in keys {
            asking.keys().push(key(text)?);
        }
        Ok(())
    })
}

/// `EMB.PULLB table keys`
pub(super) fn pull_packed(call: &mut Call<'_>) -> Outcome {
    let (table, keys) = (call.table(1)?, call.argument(2)?);
    check_count(keys.len() / 8, call.shared.options.max_keys)?;
    ask(call, Form::Pull, table, |asking| packed_keys(keys, asking.keys()))
}

/// `GET table:key`
pub(super) fn get(call: &mut Call<'_>) -> Outcome {
    let (name, digits) = split_key(call.argument(1)?)?;
    let (table, key) = (find_table(call.tables, name)?, key(digits)?);
    ask(call, Form::Value, table, |asking| {
        asking.keys().push(key);
        Ok(())
    })
}

/// Asks for rows of one table.
fn ask<'a>(
    call: &mut Call<'a>,
    form: Form,
    table: &'a Table,
    add: impl FnOnce(&mut Asking<'_>) -> Outcome,
) -> Outcome {
    let mut asking = call.pulls.begin();
    let most = call.shared.options.max_reply_bytes;
    let added = add(&mut asking)
        .and_then(|()| check_keys(table, asking.added()))
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
    // Keys of the first table go where they are read from; those of others follow.
    let mut asking = call.pulls.begin();
    let mut others: Vec<(&[u8], &Table, Vec<u64>)> = Vec::new();
    let mut first: Option<(&[u8], &Table)> = None;
    let mut bytes = 0;
    let mut add = |text| {
        let (name, digits) = split_key(text)?;
        let key = key(digits)?;
        let (first_name, table) = match first {
            Some(found) => found,
            None => *first.insert((name, find_table(call.tables, name)?)),
        };
        if name == first_name {
            order.push((0, asking.count() as u32));
            check_keys(table, &[key])?;
            asking.keys().push(key);
            bytes += table.row_bytes() + AROUND_ROW;
            return Ok(());
        }
        let at = match others.iter().position(|(other, ..)| *other == name) {
            Some(at) => at,
            None => {
                others.push((name, find_table(call.tables, name)?, Vec::new()));
                others.len() - 1
            }
        };
        let (_, table, keys) = &mut others[at];
        order.push((at as u32 + 1, keys.len() as u32));
        check_keys(table, &[key])?;
        keys.push(key);
        bytes += table.row_bytes() + AROUND_ROW;
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
    if let Some((_, table)) = first {
        asking.end_part(table);
    }
    for (_, table, keys) in &others {
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
    let (table, packed) = (call.table(1)?, call.argument(2)?);
    check_count(packed.len() / 8, call.shared.options.max_keys)?;
    let keys = &mut call.scratch.keys;
    keys.clear();
    packed_keys(packed, keys)?;
    check_keys(table, keys)?;
    call.shared.store.lookahead(table.id, keys)?;
    call.session.has_announced = true;
    call.done()
}

/// `EMB.HOT table keys`
pub(super) fn hot(call: &mut Call<'_>) -> Outcome {
    let (table, packed) = (call.table(1)?, call.argument(2)?);
    check_count(packed.len() / 8, call.shared.options.max_keys.min(KEYS_MAX))?;
    let keys = &mut call.scratch.keys;
    keys.clear();
    packed_keys(packed, keys)?;
    check_keys(table, keys)?;
    if !call.shared.hot.send(table.id, keys) {
        return Err(Refusal::new("too many hot sets of other tables wait; try again"));
    }
    call.done()
}
