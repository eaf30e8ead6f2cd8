//! A small store beside a plain map: two tables of rows whose values are all equal, in commits that
//! begin a journal file as often as not.

use super::*;

/// Keys of a table that are used.
const KEYS: u64 = 150;
/// Ids of the dense table, so many that the pieces of its index take three commits.
const IDS: u64 = 40_000;
/// Commits with so long a meta begin a new journal file.
const META_BYTES: usize = 140 << 10;

/// Content of the tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rows(BTreeMap<(u16, u64), f32>);

pub(super) fn options(keep: usize) -> StoreOptions {
    StoreOptions { keep, ..super::options(1 << 20) }
}

/// Opens the store of a medium, with its tables.
pub(super) fn open(medium: &SimMedium, options: StoreOptions) -> Result<Store> {
    let store = Store::open_on(Arc::new(medium.clone()), options)?;
    if !store.options().read_only {
        make_tables(&store)?;
    }
    Ok(store)
}

pub(super) fn make_tables(store: &Store) -> Result<()> {
    for (name, rows) in [("dense", Some(IDS)), ("growing", None)] {
        let initializer = Initializer::Constant(0.0);
        store.table(&TableSpec { initializer, ..spec(name, rows, OptimizerKind::Sgd) })?;
    }
    Ok(())
}

fn keys(table: u16) -> Vec<u64> {
    (0..KEYS).map(|i| if table == 0 { i * (IDS / KEYS) } else { crate::hash::mix(i, 3) }).collect()
}

/// Writes some rows of both tables and deletes a few.
pub(super) fn change(store: &Store, rows: &mut Rows, random: &mut Random) -> Result<()> {
    for table in 0..2u16 {
        let all = keys(table);
        let mut pick = |most: u64| -> Vec<u64> {
            let n = 1 + random.below(most);
            (0..n).map(|_| all[random.below(KEYS) as usize]).collect()
        };
        let (written, deleted) = (pick(60), pick(5));
        let value = random.value();
        put(store, table, &written, value)?;
        rows.0.extend(written.iter().map(|key| ((table, *key), value)));
        store.delete(TableId(table), &deleted)?;
        rows.0.retain(|(of, key), _| *of != table || !deleted.contains(key));
    }
    Ok(())
}

fn put(store: &Store, table: u16, keys: &[u64], value: f32) -> Result<()> {
    let values = vec![value; keys.len() * DIM];
    store.put(&[put_of(TableId(table), keys, &values)]).map(drop)
}

/// A commit that begins a new journal file as often as not.
pub(super) fn commit(store: &Store, step: u64, random: &mut Random) -> Result<CommitInfo> {
    let meta = "m".repeat(META_BYTES * random.below(2) as usize);
    let bytes = step.to_le_bytes();
    let state: &[(&str, &[u8])] = if random.below(2) == 0 { &[("step", &bytes)] } else { &[] };
    store.commit(step, &meta, state)
}

/// Every row as the map has it, and the state of the commit.
pub(super) fn check(store: &Store, rows: &Rows, what: &str) {
    for table in 0..2u16 {
        let keys = keys(table);
        let mut values = vec![9.0; keys.len() * DIM];
        let batch = GetBatch {
            table: TableId(table),
            keys: &keys,
            values: (&mut values).into(),
            state: None,
        };
        store.get(&mut [batch]).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (key, found) in keys.iter().zip(values.chunks(DIM)) {
            let expected = rows.0.get(&(table, *key)).copied().unwrap_or(0.0);
            assert_eq!(found, [expected; DIM], "{what}: table {table} key {key}");
        }
        let of_table = rows.0.range((table, 0)..=(table, u64::MAX)).count() as u64;
        assert_eq!(store.len(TableId(table)).unwrap(), of_table, "{what}: rows of table {table}");
    }
    for (_, bytes) in store.state().unwrap_or_else(|e| panic!("{what}: {e}")) {
        assert_eq!(bytes, store.last_commit().unwrap().step.to_le_bytes(), "{what}");
    }
}
