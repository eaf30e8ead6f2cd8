//! Comparing a store with a model, to the last bit.

use crate::judge::Blame;
use crate::model::{Change, Model, Row, same};
use crate::random::Random;
use embedrock_core::io::SimMedium;
use embedrock_core::row::Dtype;
use embedrock_core::{Error, ErrorKind, GetBatch, Store, TableId};

/// Rows that are read together from a device that has lied.
const FEW: usize = 8;

/// The faults that a check may meet.
pub(crate) struct Care<'a> {
    /// The faults that have struck the device, when an error comes.
    pub(crate) blame: &'a Blame,
    pub(crate) medium: &'a SimMedium,
    /// The store may have refused changes before.
    pub(crate) poisoned: bool,
    /// The commit of a reader is not kept any more.
    pub(crate) gone: bool,
    /// A verb that failed half-way: its rows are as before or as after.
    pub(crate) torn: Option<&'a Change>,
}

impl Care<'_> {
    /// `Ok(false)` when the error is an answer.
    pub(crate) fn takes(&self, error: &Error) -> Result<bool, String> {
        let refuses = matches!(error.kind(), ErrorKind::Io | ErrorKind::Poisoned);
        let gone = self.gone && error.kind() == ErrorKind::CommitGone;
        if gone || refuses && (self.poisoned || self.medium.power_is_off()) {
            return Ok(false);
        }
        self.blame.allows(self.medium, error).map(|()| false)
    }
}

/// Gets rows and compares them; false when the store gave an error that is an answer.
pub(crate) fn rows(
    store: &Store,
    model: &Model,
    (table, id): (usize, TableId),
    keys: &[u64],
    with_state: bool,
    care: &Care<'_>,
) -> Result<bool, String> {
    let (of, dim) = (&model.tables[table], model.tables[table].dim());
    let words = of.state_words();
    let mut values = vec![f32::NAN; keys.len() * dim];
    let mut state = vec![f32::NAN; keys.len() * words];
    let state_out = with_state.then_some(&mut state[..]);
    let batch = GetBatch { table: id, keys, values: (&mut values).into(), state: state_out };
    if let Err(error) = store.get(&mut [batch]) {
        return care.takes(&error).map_err(|e| format!("get of {}: {e}", of.plan.spec.name));
    }
    for (i, key) in keys.iter().enumerate() {
        let found = &values[i * dim..][..dim];
        let found_state = &state[i * words..][..words];
        let fits =
            |row: &Row| same(found, &row[..dim]) && (!with_state || same(found_state, &row[dim..]));
        let expected = of.row(*key);
        if fits(&expected)
            || care.torn.is_some_and(|c| c.other(model, table, *key).is_some_and(|row| fits(&row)))
        {
            continue;
        }
        let written = if of.contains(*key) { "written" } else { "never written" };
        return Err(format!(
            "get of {} key {key} ({written}): found {found:?} {:?}, expected {:?}",
            of.plan.spec.name,
            if with_state { found_state } else { &[] },
            if with_state { &expected[..] } else { &expected[..dim] },
        ));
    }
    Ok(true)
}

/// Gets the bits of rows whose dtype has two bytes, and compares them.
pub(crate) fn bits(
    store: &Store,
    model: &Model,
    (table, id): (usize, TableId),
    keys: &[u64],
    care: &Care<'_>,
) -> Result<bool, String> {
    let of = &model.tables[table];
    let (dim, layout) = (of.dim(), &of.plan.layout);
    assert_ne!(layout.dtype(), Dtype::Float32, "rows of two bytes a value");
    let mut bits = vec![0u16; keys.len() * dim];
    let values = embedrock_core::ValuesOut::Bits(&mut bits);
    if let Err(error) = store.get(&mut [GetBatch { table: id, keys, values, state: None }]) {
        return care.takes(&error);
    }
    let mut words = vec![0.0; layout.value_words()];
    for (key, found) in keys.iter().zip(bits.chunks_exact(dim)) {
        layout.write_values(&mut words, &of.row(*key)[..dim]);
        if layout.bits(&words) != found {
            let expected = layout.bits(&words);
            return Err(format!("bits of key {key}: found {found:?}, expected {expected:?}"));
        }
    }
    Ok(true)
}

/// Asks which keys were written.
pub(crate) fn contained(
    store: &Store,
    model: &Model,
    (table, id): (usize, TableId),
    keys: &[u64],
    care: &Care<'_>,
) -> Result<bool, String> {
    let mut found = vec![false; keys.len()];
    if let Err(error) = store.contains(id, keys, &mut found) {
        return care.takes(&error).map_err(|e| format!("contains: {e}"));
    }
    for (key, found) in keys.iter().zip(found) {
        let expected = model.tables[table].contains(*key);
        let torn = || care.torn.is_some_and(|change| change.other(model, table, *key).is_some());
        if found != expected && !torn() {
            let name = &model.tables[table].plan.spec.name;
            return Err(format!("contains of {name} key {key}: {found}, expected {expected}"));
        }
    }
    Ok(true)
}

/// Scans a table.
pub(crate) fn scanned(
    store: &Store,
    model: &Model,
    (table, id): (usize, TableId),
    portion: usize,
    care: &Care<'_>,
) -> Result<bool, String> {
    let of = &model.tables[table];
    let (dim, words, name) = (of.dim(), of.state_words(), &of.plan.spec.name);
    let mut scan = match store.scan(id) {
        Ok(scan) => scan,
        Err(error) => return care.takes(&error).map_err(|e| format!("scan of {name}: {e}")),
    };
    let (mut keys, mut values) = (vec![0; portion], vec![0.0; portion * dim]);
    let mut state = vec![0.0; portion * words];
    let mut seen = std::collections::BTreeSet::new();
    loop {
        let n = match scan.next_batch(&mut keys, &mut values, Some(&mut state)) {
            Ok(n) => n,
            Err(error) => return care.takes(&error).map_err(|e| format!("scan of {name}: {e}")),
        };
        if n == 0 {
            break;
        }
        for i in 0..n {
            let row = of.row(keys[i]);
            let right = same(&values[i * dim..][..dim], &row[..dim])
                && same(&state[i * words..][..words], &row[dim..]);
            if !right || !of.contains(keys[i]) || !seen.insert(keys[i]) {
                return Err(format!("scan of {name} gives key {} wrong or twice", keys[i]));
            }
        }
    }
    if seen.len() as u64 != of.len() {
        return Err(format!("scan of {name} gives {} rows, expected {}", seen.len(), of.len()));
    }
    Ok(true)
}

/// The digest of a table.
pub(crate) fn digest(
    store: &Store,
    model: &Model,
    (table, id): (usize, TableId),
    care: &Care<'_>,
) -> Result<bool, String> {
    match store.digest(id, &mut |_, _| Ok(())) {
        Ok(found) if found == model.tables[table].digest() => Ok(true),
        Ok(found) => Err(format!("digest of {} is {found}", model.tables[table].plan.spec.name)),
        Err(error) => care.takes(&error).map_err(|e| format!("digest: {e}")),
    }
}

/// Everything: tables, counters, every written row and some others. `random` says which of the
/// dearer checks come, too. False when the store gave an error that is an answer.
pub(crate) fn all(
    store: &Store,
    model: &Model,
    random: &mut Random,
    care: &Care<'_>,
) -> Result<bool, String> {
    let mut all = true;
    let infos = store.tables();
    let names = |names: Vec<&str>| names.join(" ");
    let found = names(infos.iter().map(|info| info.spec.name.as_str()).collect());
    let expected = names(model.tables.iter().map(|t| t.plan.spec.name.as_str()).collect());
    if found != expected {
        return Err(format!("the store has tables [{found}], expected [{expected}]"));
    }
    for (table, (info, of)) in infos.iter().zip(&model.tables).enumerate() {
        let at = (table, info.id);
        if care.torn.is_none() && (info.rows, info.updates) != (of.len(), of.updates) {
            return Err(format!(
                "{} has {} rows after {} updates, expected {} after {}",
                info.spec.name,
                info.rows,
                info.updates,
                of.len(),
                of.updates
            ));
        }
        let mut keys: Vec<u64> = of.keys().collect();
        keys.extend((0..20).map(|i| of.plan.key((i * 37 + 11) % of.plan.keys)));
        // Few at a time where some may be damaged: an error hides the rows that came with it.
        let portion = if care.blame.lied(care.medium) { FEW } else { keys.len() };
        for keys in keys.chunks(portion.max(1)) {
            all &= rows(store, model, at, keys, true, care)?;
        }
        all &= match random.below(6) {
            0 => scanned(store, model, at, 1 + random.below(300) as usize, care)?,
            1 => digest(store, model, at, care)?,
            2 => contained(store, model, at, &keys, care)?,
            _ => true,
        };
    }
    Ok(all)
}
