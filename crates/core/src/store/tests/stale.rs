//! Pages that are older than the index: a write that the device lost, a rows file put back.
//!
//! Tables are in a log: the tests look up which of its pages the index names, and a segment that is
//! filled again is what has earlier contents. The file of a partition is written once.

use super::super::sweeps::check::{CheckReport, check_commit};
use super::*;
use std::collections::BTreeSet;

/// Rows files by name.
type Files = BTreeMap<String, Vec<u8>>;

fn rows_files(medium: &SimMedium) -> Files {
    let names = Medium::list(medium, "rows-").unwrap();
    names.into_iter().map(|name| (name.clone(), medium.contents(&name))).collect()
}

/// A store with a past.
struct Life {
    fixture: Fixture,
    medium: SimMedium,
    random: Random,
    store: Store,
    model: Model,
    /// Content of each kept commit, by step.
    commits: Vec<(u64, Model)>,
    step: u64,
    /// The rows files at some earlier moments.
    past: Vec<Files>,
    /// Rows that cleaning has moved.
    moved: u64,
}

impl Life {
    fn new(seed: u64) -> Self {
        let fixture = Fixture::new();
        let medium = SimMedium::new(seed);
        let store = fixture.open(&medium, options(tight()));
        let (random, model, commits, past) = (Random(seed), Model::default(), vec![], vec![]);
        let mut life =
            Self { fixture, medium, random, store, model, commits, step: 0, past, moved: 0 };
        life.commit();
        life
    }

    fn open(&self, step: Option<u64>, read_only: bool) -> Result<Store> {
        let options = StoreOptions { step, read_only, ..options(tight()) };
        Store::open_on(Arc::new(self.medium.clone()), options)
    }

    fn commit(&mut self) {
        self.step += 1;
        self.store.commit(self.step, "", &[]).unwrap();
        self.commits.push((self.step, self.model.clone()));
        let kept: BTreeSet<u64> = self.store.commits().iter().map(|c| c.step).collect();
        self.commits.retain(|(step, _)| kept.contains(step));
    }

    /// Opens a commit and goes on from there; what came after it is lost.
    fn go_on_from(&mut self, step: u64) {
        self.store.close().unwrap();
        let last = self.commits.last().unwrap().0;
        self.store = self.open((step != last).then_some(step), false).unwrap();
        self.commits.retain(|(s, _)| *s <= step);
        self.model = self.commits.last().unwrap().1.clone();
    }

    /// Random verbs, with commits, crashes and ways back between them.
    fn live(&mut self, rounds: u64) {
        for _ in 0..rounds {
            for _ in 0..4 {
                self.fixture.step(&self.store, &mut self.model, &mut self.random);
            }
            match self.random.below(12) {
                0..=2 => self.commit(),
                3 => {
                    self.moved += self.store.stats().unwrap().rows_moved;
                    self.go_on_from(self.step);
                }
                4 => {
                    let oldest = self.commits[0].0;
                    self.go_on_from(oldest);
                    self.commit();
                }
                _ => {}
            }
            self.past.push(rows_files(&self.medium));
            if self.past.len() > 24 {
                self.past.remove(self.random.below(24) as usize);
            }
        }
    }

    /// The rows that the index of a store names, by class and page.
    fn rows_by_page(&self, store: &Store) -> BTreeMap<(usize, u32), Vec<(usize, u64)>> {
        let mut rows: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let engine = store.inner.engine.read();
        for (number, class) in engine.classes.iter().enumerate() {
            let log = log_of(class);
            let layout = log.layout();
            let file = self.medium.contents(log.file().name());
            for (page, bytes) in file.chunks_exact(layout.page_bytes).enumerate().skip(1) {
                for at in 0..layout.rows_per_page {
                    let slot = (page * layout.rows_per_page + at) as u32;
                    if log.page_in_memory(slot).is_some() {
                        continue;
                    }
                    let (table, key) = layout.entry(bytes, at);
                    let known = log.indexes().find(|(id, _)| *id == table);
                    if known.is_some_and(|(_, i)| i.covers(key) && i.is_newest(key, slot)) {
                        rows.entry((number, page as u32)).or_default().push((table.into(), key));
                    }
                }
            }
        }
        rows
    }

    /// Another content that a page of a file had.
    fn earlier(&mut self, file: &str, at: usize, now: &[u8]) -> Option<Vec<u8>> {
        let page = |files: &Files| files.get(file)?.get(at..at + now.len()).map(<[u8]>::to_vec);
        let mut earlier: Vec<Vec<u8>> = self.past.iter().filter_map(page).collect();
        earlier.retain(|bytes| bytes != now);
        earlier.sort_unstable();
        earlier.dedup();
        let picked = self.random.below(earlier.len().max(1) as u64) as usize;
        earlier.into_iter().nth(picked)
    }

    /// Reads a row; an error has to be `Corrupt`, and the row as it was.
    fn is_reported(&self, store: &Store, model: &Model, (table, key): (usize, u64)) -> bool {
        let words = self.fixture.width(table) - DIM;
        let (mut values, mut state) = (vec![0.0; DIM], vec![0.0; words]);
        let id = TableId(table as u16);
        let state = Some(&mut state[..]);
        let batch = GetBatch { table: id, keys: &[key], values: (&mut values).into(), state };
        if let Err(error) = store.get(&mut [batch]) {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.message().contains("rows-"), "{error}");
            return true;
        }
        let expected = self.fixture.expected(model, table, key);
        assert_eq!(values, expected[..DIM], "table {table} key {key}");
        let mut contained = [false];
        store.contains(id, &[key], &mut contained).unwrap();
        assert!(contained[0], "table {table} key {key}");
        false
    }

    /// Whether a row of the open store is not waiting to be written.
    fn is_stored(&self, (table, key): (usize, u64)) -> bool {
        let engine = self.store.inner.engine.read();
        let table = &engine.tables[table];
        let class = &engine.classes[table.class];
        let log = class.log.lock();
        let at = table.locate(class.cache(), key);
        let dirty = class.cache().peek(at, table.id(), key, |row| row.is_dirty());
        !log.is_parked(table.id(), key) && dirty != Some(true)
    }

    /// Puts an earlier content of a page in its place, and reads its rows, and the others.
    fn attack(&mut self, step: u64, read_only: bool, tries: usize) -> usize {
        let last = self.commits.last().unwrap().0;
        let model = self.commits.iter().find(|(s, _)| *s == step).unwrap().1.clone();
        let step = (step != last).then_some(step);
        self.store.close().unwrap();
        let rows = self.rows_by_page(&self.open(step, read_only).unwrap());
        let pages: Vec<(usize, u32)> = rows.keys().copied().collect();
        let (mut done, mut looked) = (0, 0);
        while done < tries && looked < 20 * tries && !pages.is_empty() {
            looked += 1;
            let (class, page) = pages[self.random.below(pages.len() as u64) as usize];
            let name = format!("rows-{class}");
            let at = page as usize * 512;
            let now = self.medium.contents(&name)[at..at + 512].to_vec();
            let Some(earlier) = self.earlier(&name, at, &now) else { continue };
            done += 1;
            self.medium.replace(&name, at as u64, &earlier);
            let store = self.open(step, read_only).unwrap();
            for row in &rows[&(class, page)] {
                let what = format!("{name}, page {page}, {row:?}, step {step:?}");
                assert!(self.is_reported(&store, &model, *row), "{what}");
            }
            let table = rows[&(class, page)][0].0;
            let scanned = store.digest(TableId(table as u16), &mut |_, _| Ok(()));
            assert_eq!(scanned.unwrap_err().kind(), ErrorKind::Corrupt, "{name}, page {page}");
            let mut report = CheckReport::default();
            check_commit(&store, &mut report, &mut |_, _| Ok(())).unwrap();
            assert_eq!(report.problem_count, 1, "{name}, page {page}: {:?}", report.problems);
            let what = &report.problems[0].message;
            assert!(what.contains(&format!("{name}, page {page} ")), "{what}");
            if let Err(error) = store.warm() {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            }
            for _ in 0..20 {
                let (_, row) =
                    rows.iter().nth(self.random.below(rows.len() as u64) as usize).unwrap();
                self.is_reported(&store, &model, row[0]);
            }
            drop(store);
            self.medium.replace(&name, at as u64, &now);
        }
        self.go_on_from(last);
        done
    }
}

// An old page passed its checks wherever its class and place were right. In a growing table another
// key in the slot passed for a tag collision, and the row read as initial; where an earlier filling
// of the segment had the same row in the same slot, its old values came back.
#[test]
fn an_earlier_content_of_a_page_is_never_taken_for_it() {
    let (mut replaced, mut moved) = (0, 0);
    for seed in 0..5 {
        let mut life = Life::new(seed);
        for _ in 0..3 {
            life.live(30);
            life.commit();
            life.go_on_from(life.step);
            let steps: Vec<u64> = life.commits.iter().map(|(step, _)| *step).collect();
            for step in steps {
                for read_only in [false, true] {
                    replaced += life.attack(step, read_only, 5);
                }
            }
        }
        moved += life.moved;
    }
    assert!(replaced > 200, "only {replaced} pages had an earlier content");
    assert!(moved > 0, "nothing was cleaned");
}

// The same, where the store was open all the time: what is in memory is right, what has to be read
// is reported, whatever a segment was filled with since the last commit.
#[test]
fn a_page_that_changes_under_an_open_store_is_reported() {
    let (mut reported, mut right) = (0, 0);
    for seed in 10..14 {
        let mut life = Life::new(seed);
        for _ in 0..40 {
            life.live(2);
            let store = life.store.clone();
            let rows = life.rows_by_page(&store);
            let nth = life.random.below(rows.len().max(1) as u64) as usize;
            let Some(((class, page), here)) = rows.into_iter().nth(nth) else { continue };
            let (name, at) = (format!("rows-{class}"), page as usize * 512);
            let now = life.medium.contents(&name)[at..at + 512].to_vec();
            let Some(earlier) = life.earlier(&name, at, &now) else { continue };
            life.medium.replace(&name, at as u64, &earlier);
            // Rows that wait in DRAM are newer than their stored copies.
            for row in here.into_iter().filter(|row| life.is_stored(*row)) {
                match life.is_reported(&store, &life.model, row) {
                    true => reported += 1,
                    false => right += 1,
                }
            }
            life.medium.replace(&name, at as u64, &now);
        }
    }
    assert!(reported > 100 && right > 10, "{reported} rows were reported, {right} right");
}

// Of a file put back from an earlier copy, rows of growing tables read as initial or as they were.
#[test]
fn an_earlier_rows_file_in_the_place_of_the_last_is_reported() {
    let (mut reported, mut right) = (0, 0);
    for seed in 20..24 {
        let mut life = Life::new(seed);
        life.live(60);
        life.commit();
        life.store.close().unwrap();
        let now = rows_files(&life.medium);
        let rows = life.rows_by_page(&life.open(None, false).unwrap());
        for past in life.past.clone() {
            for (name, earlier) in &past {
                let of_now = &now[name];
                let len = earlier.len().min(of_now.len());
                life.medium.replace(name, 0, &earlier[..len]);
                let store = life.open(None, false).unwrap();
                for ((class, page), here) in &rows {
                    let at = *page as usize * 512;
                    let page = at..at + 512;
                    let other = format!("rows-{class}") == *name
                        && page.end <= len
                        && earlier[page.clone()] != of_now[page];
                    let found = life.is_reported(&store, &life.model, here[0]);
                    assert_eq!(found, other, "{name} {class} {at}");
                    reported += usize::from(found);
                    right += usize::from(!found);
                }
                drop(store);
                life.medium.replace(name, 0, of_now);
            }
        }
    }
    assert!(reported > 500 && right > 500, "{reported} rows were reported, {right} right");
}

// The writer took pages that were written after its commit for those that its index named. Readers
// did not.
#[test]
fn a_rows_file_that_is_newer_than_the_journal_is_reported() {
    let mut reported = 0;
    for seed in 30..33 {
        let mut life = Life::new(seed);
        life.live(20);
        life.commit();
        life.store.close().unwrap();
        // The journal and the head as they are at this commit, put back later.
        let mut names = Medium::list(&life.medium, "journal-").unwrap();
        names.push("head".to_owned());
        let then: Files = names.iter().map(|n| (n.clone(), life.medium.contents(n))).collect();
        let (model, rows) =
            (life.model.clone(), life.rows_by_page(&life.open(None, false).unwrap()));
        let before = rows_files(&life.medium);
        life.go_on_from(life.step);
        for _ in 0..20 {
            for _ in 0..20 {
                life.fixture.step(&life.store, &mut life.model, &mut life.random);
            }
            life.commit();
        }
        life.store.close().unwrap();
        let after = rows_files(&life.medium);
        for name in Medium::list(&life.medium, "journal-").unwrap() {
            life.medium.remove(&name).unwrap();
        }
        for (name, bytes) in &then {
            let _ = life.medium.remove(name);
            let file = life.medium.open(name, crate::io::OpenMode::CreateNew).unwrap();
            file.write_at(bytes, 0).unwrap();
        }
        let store = life.open(None, false).unwrap();
        for ((class, page), here) in &rows {
            let (name, at) = (format!("rows-{class}"), *page as usize * 512);
            let other = after[&name].get(at..at + 512) != before[&name].get(at..at + 512);
            assert_eq!(life.is_reported(&store, &model, here[0]), other, "{name} page {page}");
            reported += usize::from(other);
        }
    }
    assert!(reported > 20, "only {reported} pages were written again");
}

// The journal tells as much as the writer knew: with less, some earlier page would pass.
#[test]
fn a_replay_finds_where_each_filling_began() {
    let (mut known, mut files) = (0, 0);
    for seed in 40..43 {
        let mut life = Life::new(seed);
        for _ in 0..30 {
            for _ in 0..3 {
                for _ in 0..40 {
                    life.fixture.step(&life.store, &mut life.model, &mut life.random);
                }
                life.commit();
            }
            let held = |store: &Store| -> Vec<Vec<(u32, u64)>> {
                let engine = store.inner.engine.read();
                engine.classes.iter().map(|class| log_of(class).fillings_in_use()).collect()
            };
            let expected = held(&life.store);
            life.go_on_from(life.step);
            assert_eq!(held(&life.store), expected, "seed {seed}");
            assert!(expected.iter().flatten().all(|(_, first)| *first > 0));
            known += expected.iter().flatten().count();
        }
        // The first file, and with it what it tells of the first fillings, is gone.
        let first = Medium::list(&life.medium, "journal-").unwrap().remove(0);
        files += super::super::journal::number_of(&first).unwrap() - 1;
    }
    assert!(files > 2, "{files} files of the journal were removed");
    assert!(known > 1000, "{known} segments");
}

// Any other key in a growing table's slot passed for a tag collision, and the row read as initial.
#[test]
fn a_row_that_the_index_does_not_name_is_no_tag_collision() {
    let mut life = Life::new(50);
    for _ in 0..60 {
        life.fixture.step(&life.store, &mut life.model, &mut life.random);
    }
    life.commit();
    life.store.close().unwrap();
    let rows = life.rows_by_page(&life.open(None, false).unwrap());
    let (mut done, mut tables) = (0, BTreeSet::new());
    for ((class, page), here) in rows {
        let store = life.open(None, false).unwrap();
        let layout = log_of(&store.inner.engine.read().classes[class]).layout().clone();
        let (name, at) = (format!("rows-{class}"), u64::from(page) * 512);
        let now = life.medium.contents(&name)[at as usize..at as usize + 512].to_vec();
        let count = layout.verify(&now, page, &name).unwrap();
        for row in here.into_iter().filter(|(table, _)| [1, 3, 6].contains(table)).take(1) {
            let is = |slot: &usize| layout.entry(&now, *slot) == (row.0 as u16, row.1);
            let slot = (0..count).find(is).unwrap();
            // The page is sound, and new enough; the row is another key's, or another table's.
            let other = [(row.0 as u16, row.1 ^ 1 << 33), (0, 0)][done % 2];
            let mut page_now = now.clone();
            let mut words = vec![0.0; layout.row_bytes / 4];
            let begin = 32 + slot * layout.row_bytes;
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            bytes.copy_from_slice(&now[begin..begin + layout.row_bytes]);
            layout.put(&mut page_now, slot, other.0, other.1, &words);
            layout.seal(&mut page_now, page, count, layout.sequence(&now));
            life.medium.replace(&name, at, &page_now);
            assert!(life.is_reported(&store, &life.model, row), "{row:?}");
            life.medium.replace(&name, at, &now);
            done += 1;
            tables.insert(row.0);
        }
    }
    assert!(done > 30 && tables.len() == 3, "{done} rows of tables {tables:?}");
}
