//! Damaged files are reported, with their place, and never returned as rows.

use super::*;

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
        for round in 0..150u64 {
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
