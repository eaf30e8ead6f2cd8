//! Stores whose storage does not know which rows it has, and names the pages of a row one after the
//! other. The probe hides that, whatever the storage beneath it is.

use super::probe::Probe;
use super::*;

#[test]
fn rows_are_found_in_pages_that_are_named_after_a_wrong_one() {
    let fixture = Fixture::new();
    let medium = SimMedium::new(11);
    let store = fixture.open(&medium, options(tight()));
    let (mut model, mut random) = (Model::default(), Random(11));
    for _ in 0..60 {
        fixture.step(&store, &mut model, &mut random);
    }
    let digests = || (0..fixture.specs.len()).map(|t| digest(&store, TableId(t as u16)));
    let known: Vec<u64> = digests().collect();
    let classes = store.inner.engine.read().classes.len();
    let wishes: Vec<_> = (0..classes).map(|class| Probe::around(&store, class)).collect();
    wishes.iter().for_each(|wishes| wishes.hides.store(true, Ordering::Relaxed));
    let before = store.stats().unwrap();
    fixture.check_all(&store, &model);
    let after = store.stats().unwrap();
    let collisions = after.tag_collisions - before.tag_collisions;
    assert!(collisions > 100, "{collisions}: wrong pages come first");
    assert!(after.pages_read - before.pages_read > 100);
    assert_eq!(digests().collect::<Vec<u64>>(), known, "by sweeps");
    for wishes in &wishes {
        assert!(wishes.advanced.load(Ordering::Relaxed) > 0, "before each read of a sweep");
    }
    for _ in 0..150 {
        fixture.step(&store, &mut model, &mut random);
    }
    fixture.check_all(&store, &model);
    store.commit(1, "", &[]).unwrap();
    store.close().unwrap();
    let store = fixture.open(&medium, options(tight()));
    fixture.check_all(&store, &model);
}
