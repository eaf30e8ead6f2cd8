//! The next opening reads what a commit writes: tables of every kind live through thousands of
//! commits with small journal files, each of which begins with a catalog of all of them.

use super::*;

const COMMITS: u64 = 2000;
/// The journal begins anew every few commits.
const JOURNAL_BYTES: u64 = 2 << 10;
const KEYS: u64 = 60;

/// A table and what it holds: a value in all elements of each row.
struct Lived {
    spec: TableSpec,
    rows: BTreeMap<u64, f32>,
    /// Whether it is written.
    is_used: bool,
}

/// Every shape of a table in this kind of storage: by id or growing, in half precision, with few
/// of its ids, empty for ever.
fn shapes(kind: StorageKind) -> Vec<Lived> {
    let with = |name: &str, rows: Option<u64>, change: &dyn Fn(&mut TableSpec)| {
        let mut spec = TableSpec {
            storage: kind,
            capacity: (kind.is_direct() && rows.is_none()).then_some(500),
            initializer: Initializer::Constant(0.0),
            ..spec(&format!("{}-{name}", kind.name()), rows, OptimizerKind::Adagrad)
        };
        change(&mut spec);
        Lived { spec, rows: BTreeMap::new(), is_used: !name.contains("empty") }
    };
    let mut shapes = vec![
        with("dense", Some(200), &|_| {}),
        with("growing", None, &|_| {}),
        with("dense-empty", Some(50), &|_| {}),
        with("growing-empty", None, &|_| {}),
        with("dense-half", Some(100), &|spec| spec.dtype = Dtype::Float16),
        with("growing-half", None, &|spec| spec.dtype = Dtype::Bfloat16),
    ];
    if !kind.is_direct() {
        shapes.push(with("few", Some(5000), &|spec| spec.expected_rows = Some(40)));
    }
    shapes
}

fn key(lived: &Lived, i: u64) -> u64 {
    if lived.spec.num_embeddings.is_some() { i } else { crate::hash::mix(i, 3) }
}

fn small_journals() -> StoreOptions {
    StoreOptions { journal_bytes_min: JOURNAL_BYTES, ..options(2 << 20) }
}

fn open(medium: &SimMedium, tables: &[Lived], options: StoreOptions) -> Result<Store> {
    let store = Store::open_on(Arc::new(medium.clone()), options)?;
    if !store.options().read_only {
        tables.iter().try_for_each(|lived| store.table(&lived.spec).map(drop))?;
    }
    Ok(store)
}

/// Writes a few rows of some tables, and deletes others.
fn change(store: &Store, tables: &mut [Lived], random: &mut Random) {
    for (at, lived) in (0..).zip(tables).filter(|(_, lived)| lived.is_used) {
        if random.below(3) > 0 {
            continue;
        }
        let value = random.below(100) as f32;
        let keys: Vec<u64> =
            (0..1 + random.below(5)).map(|_| key(lived, random.below(KEYS))).collect();
        let values = vec![value; keys.len() * DIM];
        store.put(&[put_of(TableId(at), &keys, &values)]).unwrap();
        lived.rows.extend(keys.iter().map(|key| (*key, value)));
        let gone: Vec<u64> = (0..random.below(3)).map(|_| key(lived, random.below(KEYS))).collect();
        store.delete(TableId(at), &gone).unwrap();
        lived.rows.retain(|key, _| !gone.contains(key));
    }
}

fn check(store: &Store, tables: &[Lived], what: &str) {
    for (at, lived) in (0..).zip(tables) {
        let table = store.find_table(&lived.spec.name).unwrap();
        assert_eq!(table, TableId(at));
        assert_eq!(store.len(table).unwrap(), lived.rows.len() as u64, "{what}: {at}");
        let keys: Vec<u64> = (0..KEYS.min(50)).map(|i| key(lived, i)).collect();
        let mut values = vec![9.0; keys.len() * DIM];
        let values_out = (&mut values[..]).into();
        store.get(&mut [GetBatch { table, keys: &keys, values: values_out, state: None }]).unwrap();
        for (key, found) in keys.iter().zip(values.chunks_exact(DIM)) {
            let expected = lived.rows.get(key).copied().unwrap_or(0.0);
            assert_eq!(found, [expected; DIM], "{what}: {}, key {key}", lived.spec.name);
        }
    }
}

/// A life of many commits, opened again every few of them, by a reader and by a writer.
fn live(seed: u64, mut tables: Vec<Lived>, pins: bool) {
    let (medium, mut random) = (SimMedium::new(seed), Random(seed));
    let is_direct = tables.iter().any(|lived| lived.spec.storage.is_direct());
    let mut store = open(&medium, &tables, small_journals()).unwrap();
    let begun = || crate::store::journal::numbers(&medium).unwrap().last().copied().unwrap_or(0);
    let mut reader: Option<Store> = None;
    for step in 1..=COMMITS {
        let what = format!("seed {seed}, commit {step}");
        change(&store, &mut tables, &mut random);
        match random.below(40) {
            0 if pins => drop(store.commit_pinned(step, "", &[], "pin").unwrap()),
            1 if pins && !store.pins().unwrap().is_empty() => {
                store.commit(step, "", &[]).unwrap();
                store.unpin("pin").unwrap();
            }
            _ => drop(store.commit(step, "", &[]).unwrap()),
        }
        // Only the writer reads a store with regions, which nobody else can have open.
        if !is_direct && step % 20 == 0 {
            let options = StoreOptions { read_only: true, ..small_journals() };
            let other = open(&medium, &tables, options).unwrap_or_else(|e| panic!("{what}: {e}"));
            check(&other, &tables, &what);
            // One holds its commit meanwhile.
            reader = (random.below(2) == 0).then_some(other);
        }
        if step % 50 == 0 {
            drop(reader.take());
            store.close().unwrap();
            drop(store);
            store = open(&medium, &tables, small_journals())
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            check(&store, &tables, &what);
        }
    }
    assert!(begun() > 50, "{} journal files", begun());
}

#[test]
fn tables_of_every_kind_live_through_thousands_of_commits() {
    for kind in [StorageKind::Log, StorageKind::Lsm, StorageKind::Pages] {
        with_kind(kind, || live(1, shapes(kind), true));
    }
    with_kind(StorageKind::Pmem, || live(2, shapes(StorageKind::Pmem), false));
}

#[test]
fn a_store_with_tables_of_all_kinds_lives_through_thousands_of_commits() {
    let kinds = [StorageKind::Pmem, StorageKind::Log, StorageKind::Pages, StorageKind::Lsm];
    with_kind(StorageKind::Lsm, || {
        live(3, kinds.iter().flat_map(|kind| shapes(*kind)).collect(), false);
    });
}

#[test]
fn a_journal_that_leaves_out_the_parts_of_a_region_is_read() {
    use crate::store::journal::{JournalFile, JournalReader, RecordKind, TableRecord, read_json};
    with_kind(StorageKind::Pmem, || {
        let (medium, mut random) = (SimMedium::new(5), Random(5));
        let mut tables = shapes(StorageKind::Pmem);
        let store = open(&medium, &tables, small_journals()).unwrap();
        for step in 1..=60 {
            change(&store, &mut tables, &mut random);
            store.commit(step, "", &[]).unwrap();
        }
        let seed = store.inner.seed;
        drop(store);
        // Such a file began with records that have no partitions, and the one before it is gone.
        for number in crate::store::journal::numbers(&medium).unwrap() {
            let mut reader = JournalReader::open(&medium, seed, number).unwrap().unwrap();
            let mut records = Vec::new();
            while let Some(kind) = reader.next().unwrap() {
                let mut payload = reader.payload().to_vec();
                if kind == RecordKind::Table {
                    let record: TableRecord = read_json(&payload, "table").unwrap();
                    let record = TableRecord { partitions: None, ..record };
                    payload = serde_json::to_vec(&record).unwrap();
                }
                records.push((kind, payload));
            }
            medium.remove(&crate::store::journal::name_of(number)).unwrap();
            let mut file = JournalFile::create(&medium, seed, number, 2).unwrap();
            records.iter().try_for_each(|(kind, payload)| file.append(*kind, payload)).unwrap();
            file.file().sync().unwrap();
        }
        let mut store = open(&medium, &tables, small_journals()).unwrap();
        check(&store, &tables, "opened");
        for step in 61..=120 {
            change(&store, &mut tables, &mut random);
            store.commit(step, "", &[]).unwrap();
        }
        drop(store);
        store = open(&medium, &tables, small_journals()).unwrap();
        check(&store, &tables, "went on");
    });
}
