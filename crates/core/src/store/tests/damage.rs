//! Damaged files are reported, with their place, and never returned as rows.

use super::meddled::Meddled;
use super::*;
use crate::storage::Finding;

fn trained(medium: &SimMedium, fixture: &Fixture) -> Model {
    let store = fixture.open(medium, options(tight()));
    let (mut random, mut model) = (Random(3), Model::default());
    for step in 0..6u64 {
        for table in 0..fixture.specs.len() {
            let keys = fixture.pick(&mut random, table, 300);
            fixture.update(&store, &mut model, &mut random, table, &keys);
        }
        store.commit(step, "", &[("s", b"some state")]).unwrap();
    }
    store.close().unwrap();
    model
}

/// Opens and reads everything; errors must be `Corrupt`, rows must be right.
fn read_all(medium: &SimMedium, fixture: &Fixture, model: &Model) -> Result<()> {
    let store = Store::open_on(Arc::new(medium.clone()), options(tight()))?;
    let step = store.last_commit().map(|c| c.step);
    assert_eq!(step, Some(5), "an older commit was opened without a word");
    for table in 0..fixture.specs.len() {
        let keys = &fixture.keys[table];
        let words = fixture.width(table) - DIM;
        let mut values = vec![0.0; keys.len() * DIM];
        let mut state = vec![0.0; keys.len() * words];
        let id = TableId(table as u16);
        let batch =
            GetBatch { table: id, keys, values: (&mut values).into(), state: Some(&mut state) };
        store.get(&mut [batch])?;
        for (i, key) in keys.iter().enumerate() {
            let expected = fixture.expected(model, table, *key);
            let (expected_values, expected_state) = expected.split_at(DIM);
            assert_eq!(values[i * DIM..][..DIM], *expected_values, "table {table} key {key}");
            assert_eq!(state[i * words..][..words], *expected_state, "table {table} key {key}");
        }
    }
    let strings = store.state()?;
    assert_eq!(strings, [("s".to_owned(), b"some state".to_vec())]);
    Ok(())
}

#[test]
fn flipped_bits_are_found_or_harmless() {
    each_kind(|| {
        let fixture = Fixture::new();
        let mut found = BTreeMap::new();
        let mut random = Random(21);
        for round in 0..150 / stride(2) {
            let medium = SimMedium::new(7);
            let model = trained(&medium, &fixture);
            let names = Medium::list(&medium, "").unwrap();
            let name = &names[random.below(names.len() as u64) as usize];
            let file = medium.open(name, crate::io::OpenMode::ReadOnly).unwrap();
            // The journal is mostly room reserved for later.
            let offset = random.below(file.len().unwrap().min(24 << 10));
            drop(file);
            medium.flip_bit(name, offset);
            match read_all(&medium, &fixture, &model) {
                Ok(()) => {}
                Err(error) => {
                    assert!(
                        matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
                        "round {round} {name} byte {offset}: {error:?}"
                    );
                    *found.entry(name.split('-').next().unwrap().to_owned()).or_insert(0) += 1;
                }
            }
        }
        for kind in ["rows", "journal", "superblock"] {
            assert!(found.contains_key(kind), "no damage found in {kind}: {found:?}");
        }
    });
}

const ROWS: u64 = 8000;

fn one_table(medium: &SimMedium) -> (Store, TableId) {
    let store = Store::open_on(Arc::new(medium.clone()), options(300 << 10)).unwrap();
    let table = store.table(&spec("t", Some(ROWS), OptimizerKind::Sgd)).unwrap();
    (store, table)
}

fn write(store: &Store, table: TableId, keys: &[u64], rows: &mut BTreeMap<u64, f32>, value: f32) {
    store.put(&[put_of(table, keys, &vec![value; keys.len() * DIM])]).unwrap();
    rows.extend(keys.iter().map(|key| (*key, value)));
}

fn read(store: &Store, table: TableId, key: u64) -> Result<f32> {
    let mut values = [0.0; DIM];
    let out = (&mut values[..]).into();
    store.get(&mut [GetBatch { table, keys: &[key], values: out, state: None }])?;
    Ok(values[0])
}

/// Random writes of rows that are not damaged, until upkeep has named damage, and as many more.
/// Returns what moved and how many merges there were since then.
fn write_past_damage(
    store: &Store,
    table: TableId,
    sound: &[u64],
    rows: &mut BTreeMap<u64, f32>,
    random: &mut Random,
    prefix: &str,
) -> (u64, u64) {
    let damage = |store: &Store| store.stats().unwrap().classes[0].damage.clone();
    let (mut left, mut met) = (400, None);
    while left > 0 {
        let keys: Vec<u64> =
            (0..200).map(|_| sound[random.below(sound.len() as u64) as usize]).collect();
        write(store, table, &keys, rows, random.value());
        if random.below(3) == 0 {
            store.commit(1, "", &[]).unwrap();
        }
        left -= 1;
        if met.is_none() && !damage(store).is_empty() {
            left = 200;
            met = Some((store.stats().unwrap().rows_moved, merges(store)));
        }
    }
    let (moved, merged) = met.expect("upkeep has met the damage");
    let named = damage(store);
    // A page of the top is met by cleaning and by the merge of each partition that it has rows of.
    let most = if KIND.get() == StorageKind::Lsm && prefix == "rows-0" { 8 } else { 1 };
    assert!(named.len() <= most, "it is met again: {named:?}");
    assert!(named.iter().all(|one| one.contains(prefix) && one.contains("page")), "{named:?}");
    assert!(!store.is_poisoned());
    (store.stats().unwrap().rows_moved - moved, merges(store) - merged)
}

/// Flips a bit of a page without which some row cannot be read, in a file whose name begins so.
fn damage_page(medium: &SimMedium, prefix: &str, all: &[u64]) {
    let files = Medium::list(medium, prefix).unwrap();
    let pages_of = |file: &String| medium.contents(file).len() as u64 / 512;
    let pages = files.iter().flat_map(|file| (1..pages_of(file)).map(move |page| (file, page)));
    for (file, page) in pages {
        medium.flip_bit(file, page * 512 + 100);
        let (store, table) = one_table(medium);
        let mut values = vec![0.0; all.len() * DIM];
        let values = (&mut values).into();
        if store.get(&mut [GetBatch { table, keys: all, values, state: None }]).is_err() {
            return;
        }
        medium.flip_bit(file, page * 512 + 100);
    }
    panic!("no page of {files:?} is needed");
}

/// A merge that read a damaged page poisoned the store, and so did the next one after each opening;
/// cleaning did the same.
#[test]
fn upkeep_leaves_damage_where_it_is_and_goes_on_beside_it() {
    each_kind(|| {
        let prefixes: &[&str] = match KIND.get() {
            StorageKind::Log => &["rows-0"],
            _ => &["part-0-", "rows-0"],
        };
        prefixes.iter().for_each(|prefix| goes_on_beside_damage(prefix));
    });
}

fn goes_on_beside_damage(prefix: &str) {
    let medium = SimMedium::new(7);
    let (mut rows, mut random) = (BTreeMap::new(), Random(11));
    let all: Vec<u64> = (0..ROWS).collect();
    let (store, table) = one_table(&medium);
    for keys in all.chunks(500) {
        write(&store, table, keys, &mut rows, random.value());
    }
    for step in 0..3 {
        store.commit(step, "", &[]).unwrap();
    }
    // These are in the top of an lsm.
    write(&store, table, &all[1000..1200], &mut rows, random.value());
    store.commit(3, "", &[]).unwrap();
    store.close().unwrap();
    damage_page(&medium, prefix, &all);
    let (store, table) = one_table(&medium);
    let is_damaged = |key: &u64| match read(&store, table, *key) {
        Ok(value) => {
            assert_eq!(value, rows[key], "key {key}");
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            true
        }
    };
    let (damaged, sound): (Vec<u64>, Vec<u64>) = all.iter().partition(|key| is_damaged(key));
    assert!((1..40).contains(&damaged.len()), "{damaged:?}");
    let (mut store, mut table) = (store, table);
    for _ in 0..2 {
        let (moved, merged) =
            write_past_damage(&store, table, &sound, &mut rows, &mut random, prefix);
        assert!(moved > 1000, "{moved} rows were moved beside the damage");
        assert!(merged > 2 || KIND.get() == StorageKind::Log, "{merged} merges");
        store.commit(9, "", &[]).unwrap();
        for key in &sound {
            assert_eq!(read(&store, table, *key).unwrap(), rows[key], "key {key}");
        }
        for key in &damaged {
            assert_eq!(read(&store, table, *key).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        store.close().unwrap();
        (store, table) = one_table(&medium);
    }
    store.close().unwrap();
}

#[test]
fn truncated_files_are_found() {
    each_kind(|| {
        let fixture = Fixture::new();
        for prefix in ["rows-", "journal-", "state-", "superblock"] {
            let medium = SimMedium::new(7);
            let model = trained(&medium, &fixture);
            // The newest of each kind: an older one may not be needed any more.
            let name = Medium::list(&medium, prefix).unwrap().pop().unwrap();
            let file = medium.open(&name, crate::io::OpenMode::ReadWrite).unwrap();
            file.set_len(file.len().unwrap().min(2000) / 2).unwrap();
            drop(file);
            let error = read_all(&medium, &fixture, &model).expect_err(&name);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
            assert!(error.message().contains(prefix) || prefix == "journal-", "{name}: {error}");
        }
    });
}

/// Of pages that could not be read together one was told, and the others counted as checked.
#[test]
fn a_check_reads_the_pages_beside_one_that_cannot_be_read() {
    with_kind(StorageKind::Lsm, || {
        let medium = SimMedium::new(8);
        let meddled = Meddled::new(&medium);
        let store = Store::open_on(meddled.clone(), options(300 << 10)).unwrap();
        let table = store.table(&spec("t", Some(ROWS), OptimizerKind::Sgd)).unwrap();
        let (all, mut rows) = ((0..ROWS).collect::<Vec<u64>>(), BTreeMap::new());
        all.chunks(500).for_each(|keys| write(&store, table, keys, &mut rows, 1.0));
        store.commit(1, "", &[]).unwrap();
        let check = || {
            let engine = store.inner.engine.read();
            let (storage, mut said) = (engine.classes[0].log.lock(), Vec::new());
            let mut say = |finding| match finding {
                Finding::Damage(error) => said.push(error.message().to_owned()),
                other => said.push(format!("{other:?}")),
            };
            let checked = storage.check(&mut |_, _| Ok(()), &mut say).unwrap();
            (checked.pages, checked.rows, said)
        };
        let (pages, found, said) = check();
        assert!(said.is_empty(), "{said:?}");
        let files = Medium::list(&medium, "part-0-").unwrap();
        let is_long =
            |name: &&String| *name != "part-0-room" && medium.contents(name).len() > 40 * 512;
        let name = files.iter().find(is_long).expect("a partition has forty pages");
        meddled.make_unreadable(name, 10 * 512 + 5..10 * 512 + 6);
        medium.flip_bit(name, 20 * 512 + 100);
        let (pages_beside, found_beside, said) = check();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains(name) && said[0].contains("at 5125"), "{said:?}");
        assert!(said[1].contains(name) && said[1].contains("page 20"), "{said:?}");
        assert!(pages_beside == pages && found_beside < found && found_beside + 60 > found);
    });
}

// It was named that any earlier commit helps, and those that shared the state had the damage, too.
#[test]
fn damage_of_a_state_that_commits_share_names_one_that_has_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let keeping = |keep| StoreOptions { keep, ..options(1 << 20) };
    let store = Store::open(&path, keeping(4)).unwrap();
    store.commit(1, "", &[("weights", b"first")]).unwrap();
    store.commit(2, "", &[("weights", b"other")]).unwrap();
    store.commit_with_last_state(3, "").unwrap();
    store.commit_with_last_state(4, "").unwrap();
    let newest = path.join("state-0000000004");
    std::fs::write(&newest, b"wrong").unwrap();
    let said = store.state().unwrap_err();
    assert_eq!(said.kind(), ErrorKind::Corrupt);
    assert!(
        said.message().contains("with step=1, its newest commit whose state is whole"),
        "{said}"
    );
    // A commit that shares it is refused so, too, where it would have to be copied; here it shares.
    store.commit_with_last_state(5, "").unwrap();
    let said = store.state().unwrap_err();
    assert!(said.message().ends_with("no earlier commit that is kept has a whole state"), "{said}");
    drop(store);
    let earlier = Store::open(&path, StoreOptions { step: Some(2), ..keeping(4) }).unwrap();
    assert_eq!(earlier.state().unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn damage_of_a_state_that_is_copied_names_the_newest_commit_that_is_whole() {
    let medium = SimMedium::new(4);
    let open =
        || Store::open_on(Arc::new(medium.clone()), StoreOptions { keep: 4, ..options(1 << 20) });
    let store = open().unwrap();
    store.commit(1, "", &[("weights", b"first")]).unwrap();
    store.commit(2, "", &[("weights", b"other")]).unwrap();
    let file = medium.open("state-0000000002", OpenMode::ReadWrite).unwrap();
    file.write_at(b"wrong", 0).unwrap();
    let said = store.commit_with_last_state(3, "").unwrap_err();
    assert!(said.message().contains("open the store with step=1, its newest"), "{said}");
    medium.remove("state-0000000002").unwrap();
    let said = store.state().unwrap_err();
    assert!(said.message().starts_with("state-0000000002 is missing; restore"), "{said}");
}
