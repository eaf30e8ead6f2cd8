//! Power cuts on the simulated device, at every operation.

use super::*;

/// Options with which an lsm merges after few rows.
fn merging_soon() -> StoreOptions {
    let options = options(tight());
    match KIND.get() {
        StorageKind::Log => options,
        _ => StoreOptions { top_share: Some(0.02), ..options },
    }
}

/// Trains, with a power cut after `operation`; whatever survives must be one of the commits, and
/// not older than the last one that was acknowledged. Returns whether the power was cut, and how
/// many merges there were before.
fn power_cut(fixture: &Fixture, operation: u64, seed: u64, in_background: bool) -> (bool, u64) {
    // An lsm has enough rows to merge.
    let most = if KIND.get() == StorageKind::Lsm { 400 } else { 150 };
    let mut merged = 0;
    let medium = SimMedium::new(seed);
    medium.power_cut_after(operation);
    let mut random = Random(seed);
    let mut model = Model::default();
    let mut points: Vec<(u64, Model)> = vec![(0, model.clone())];
    let mut acknowledged = 0;
    let mut pending: Option<PendingCommit> = None;
    let _ = (|| -> Result<()> {
        let store = Store::open_on(Arc::new(medium.clone()), merging_soon())?;
        for spec in &fixture.specs {
            store.table(spec)?;
        }
        for step in 1..=6u64 {
            for _ in 0..3 {
                let table = random.below(fixture.specs.len() as u64) as usize;
                let keys = fixture.pick(&mut random, table, most);
                let gradients = vec![0.25; keys.len() * DIM];
                let batch = UpdateBatch {
                    table: TableId(table as u16),
                    keys: &keys,
                    gradients: &gradients,
                    hyper: HYPER,
                    non_finite: NonFinite::Refuse,
                    step: None,
                };
                store.update(&[batch])?;
                let count = model.updates.entry(table as u16).or_default();
                *count += 1;
                let count = *count;
                let mut times: BTreeMap<u64, usize> = BTreeMap::new();
                keys.iter().for_each(|k| *times.entry(*k).or_default() += 1);
                for (key, times) in times {
                    let gradient = [0.25 * times as f32; DIM];
                    fixture.step_row(&mut model, table, key, count, &gradient);
                }
                if random.below(4) == 0 {
                    let doomed = fixture.pick(&mut random, 1, 20);
                    store.delete(TableId(1), &doomed)?;
                    doomed.iter().for_each(|k| drop(model.rows.remove(&(1, *k))));
                }
                merged = merges(&store);
            }
            if let Some(pending) = pending.take() {
                acknowledged = pending.wait(None)?.expect("there is no timeout").step;
            }
            points.push((step, model.clone()));
            let (bytes, step) = (step.to_le_bytes(), step);
            let state: [(&str, &[u8]); 1] = [("step", &bytes)];
            if in_background {
                pending = Some(store.commit_in_background(step, "", &state)?);
            } else {
                acknowledged = store.commit(step, "", &state)?.step;
            }
            merged = merges(&store);
        }
        Ok(())
    })();
    if let Some(pending) = pending
        && let Ok(info) = pending.wait(None)
    {
        acknowledged = info.expect("there is no timeout").step;
    }
    let cut = medium.power_is_off();
    for reboot in 0..2 {
        let survivor = medium.reboot(seed * 31 + reboot);
        let store = Store::open_on(Arc::new(survivor), merging_soon())
            .unwrap_or_else(|e| panic!("operation {operation} seed {seed}.{reboot}: {e}"));
        let step = store.last_commit().map_or(0, |c| c.step);
        let what = format!("operation {operation} seed {seed}.{reboot} step {step}");
        assert!(step >= acknowledged && step <= acknowledged + 1, "{what}, had {acknowledged}");
        if step == 0 {
            continue;
        }
        let (_, model) = &points[step as usize];
        fixture.check_all(&store, model);
        assert_eq!(store.state().unwrap(), [("step".to_owned(), step.to_le_bytes().to_vec())]);
        // Life goes on: another commit, and the store it leaves is whole.
        let mut model = model.clone();
        fixture.update(&store, &mut model, &mut random, 0, &[1, 2, 3]);
        store.commit(step + 100, "", &[]).unwrap();
        fixture.check_all(&store, &model);
    }
    (cut, merged)
}

#[test]
fn power_cuts_at_every_operation_leave_the_last_commit() {
    each_kind(|| {
        let fixture = Fixture::new();
        for in_background in [false, true] {
            let (mut operation, mut before_merges) = (1, BTreeMap::new());
            loop {
                let (cut, merged) = power_cut(&fixture, operation, operation, in_background);
                if !cut {
                    break;
                }
                *before_merges.entry(merged).or_insert(0) += 1;
                operation += stride(7);
            }
            assert!(operation > 100, "only the first {operation} operations were cut");
            // Cuts fall into merges and between them.
            let kinds = before_merges.len();
            assert_eq!(
                kinds > 2,
                KIND.get() == StorageKind::Lsm,
                "cuts by merges before: {before_merges:?}"
            );
        }
    });
}

/// Goes back to an earlier commit and on from there, with a power cut after `operation`.
fn cut_after_going_back(fixture: &Fixture, operation: u64) -> bool {
    let medium = SimMedium::new(operation);
    let (mut random, mut model) = (Random(5), Model::default());
    let mut points = vec![model.clone()];
    let store = fixture.open(&medium, options(tight()));
    for step in 1..=4u64 {
        let keys = fixture.pick(&mut random, 1, 200);
        fixture.update(&store, &mut model, &mut random, 1, &keys);
        store.commit(step, "", &[]).unwrap();
        points.push(model.clone());
    }
    drop(store);
    medium.power_cut_after(operation);
    let mut other = points[3].clone();
    let mut went_on = false;
    let _ = (|| -> Result<()> {
        let options = StoreOptions { step: Some(3), ..options(tight()) };
        let store = Store::open_on(Arc::new(medium.clone()), options)?;
        let keys = [1, 2, 3];
        let values = [0.5; 3 * DIM];
        store.put(&[put_of(TableId(1), &keys, &values)])?;
        for key in keys {
            let mut row = fixture.expected(&other, 1, key);
            row[..DIM].fill(0.5);
            other.rows.insert((1, key), row);
        }
        store.commit(14, "", &[])?;
        went_on = true;
        Ok(())
    })();
    let cut = medium.power_is_off();
    for reboot in 0..4 {
        let survivor = Arc::new(medium.reboot(operation * 31 + reboot));
        let store = Store::open_on(survivor, options(tight()))
            .unwrap_or_else(|e| panic!("operation {operation}.{reboot}: {e}"));
        let step = store.last_commit().unwrap().step;
        assert!(step == 14 || (!went_on && [3, 4].contains(&step)), "{operation}: step {step}");
        fixture.check_all(&store, if step == 14 { &other } else { &points[step as usize] });
    }
    cut
}

#[test]
fn power_cuts_while_going_back_leave_the_commit_before_or_after() {
    each_kind(|| {
        let fixture = Fixture::new();
        let every = stride(5) as usize;
        let is_cut = |operation: &u64| cut_after_going_back(&fixture, *operation);
        let cuts = every * (1..).step_by(every).take_while(is_cut).count();
        assert!(cuts > 10, "only {cuts} operations were cut");
    });
}
