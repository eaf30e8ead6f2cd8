//! A top above a frozen bottom: look-ups, sweeps while rows are written and deleted, checks.

use super::bottom::{Edit, FrozenWriter, Shape};
use super::{IN_BOTTOM, Lsm, create};
use crate::config::{Merging, StorageKind};
use crate::hash::mix;
use crate::io::{Buffers, Medium, OpenMode, SimMedium};
use crate::storage::{
    Checked, ClassFacts, Demand, DirtyRow, Finding, Found, PageReader, Resolved, StorageBudget,
    StorageJournal, StorageRead, StorageSpace, StorageSweeps, StorageTables, StorageWrite,
    SweptRow, TableFacts, Want,
};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

const ROW_WORDS: usize = 250;
const PAGE_BYTES: usize = 4096;
/// Rows of each table at home, twice what a slice of the top has.
const ROWS: u64 = 2200;
/// Keys that are written, some of which have no home.
const KEYS: u64 = 2600;
const CANDIDATES_MAX: usize = 3;

type RowKey = (u16, u64);

/// Each key's row by the number of its change, if it has one.
type Rows = BTreeMap<RowKey, Option<u32>>;

struct Fixture {
    medium: Arc<SimMedium>,
    lsm: Box<Lsm>,
    reader: PageReader,
    rows: Rows,
    origins: BTreeMap<RowKey, u32>,
    random: u64,
    change: u32,
    /// The file of the partition, its pages, and which of them have rows at home.
    name: String,
    pages: u32,
    home_pages: u32,
}

fn words_of((table, key): RowKey, change: u32) -> [f32; ROW_WORDS] {
    std::array::from_fn(|at| match at {
        0 => f32::from(table),
        1 => (mix(key, 3) & 0xFFFF) as f32,
        _ => change as f32,
    })
}

/// Table 0 is dense, table 1 is growing.
fn key_of(table: u16, at: u64) -> RowKey {
    (table, if table == 0 { at } else { mix(at, 77) })
}

impl Fixture {
    fn new(seed: u64) -> Self {
        let medium = Arc::new(SimMedium::new(seed));
        let file = medium.open("rows-3", OpenMode::CreateNew).unwrap();
        let facts = ClassFacts {
            class: 3,
            kind: StorageKind::Lsm,
            row_bytes: ROW_WORDS * 4,
            page_bytes: PAGE_BYTES,
            segment_bytes: 16 * PAGE_BYTES as u64,
            seed: 7,
            merging: Merging::default(),
        };
        let shared: Arc<dyn Medium> = medium.clone();
        let storage: Box<dyn Any> = create::create(&facts, file, 1, &shared).unwrap();
        let mut lsm = storage.downcast::<Lsm>().unwrap();
        let demand =
            Demand { kind: facts.kind, row_bytes: facts.row_bytes, page_bytes: PAGE_BYTES };
        lsm.equip(demand.share_of(0), &*medium).unwrap();
        for (table, name, num_embeddings) in [(0, "dense", Some(KEYS)), (1, "growing", None)] {
            let (expected_rows, capacity, partitions, born) = (None, None, None, true);
            let facts = TableFacts {
                table,
                name,
                salt: crate::hash::table_salt(name),
                num_embeddings,
                expected_rows,
                packed: false,
                capacity,
                partitions,
                born,
            };
            lsm.create_table(&facts).unwrap();
        }
        let buffers = Buffers::sharing(32 * PAGE_BYTES, PAGE_BYTES, 8 * PAGE_BYTES);
        let queue = medium.queue(16, buffers).unwrap();
        let reader = PageReader::new(queue, PAGE_BYTES, None, true);
        let mut fixture = Self {
            medium,
            lsm,
            reader,
            rows: Rows::new(),
            origins: BTreeMap::new(),
            random: seed,
            change: 0,
            name: String::new(),
            pages: 0,
            home_pages: 0,
        };
        fixture.freeze();
        fixture
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.random, 11) % n
    }

    /// Makes a frozen bottom of rows of change 0, which are in no order, with pages of replicas.
    fn freeze(&mut self) {
        let shape = Shape::of(&self.lsm.facts);
        let orders = Arc::clone(self.lsm.bottom.orders());
        let queue = self.medium.queue(3, Buffers::equal(3, 8 * PAGE_BYTES)).unwrap();
        let medium = Arc::clone(&self.medium);
        let mut writer =
            FrozenWriter::create(&*medium, &shape, 1, 1, CANDIDATES_MAX, queue).unwrap();
        let mut homes: Vec<RowKey> = [0, 1]
            .into_iter()
            .flat_map(|table| (0..ROWS).map(move |at| key_of(table, at)))
            .collect();
        homes.sort_unstable_by_key(|(table, key)| mix(*key, 5 + u64::from(*table)));
        for key in &homes {
            writer.push(&orders, key.0, key.1, &words_of(*key, 0)).unwrap();
            self.rows.insert(*key, Some(0));
        }
        writer.end_homes().unwrap();
        self.home_pages = writer.page() - 1;
        for page in 0..60 {
            // The first row has more replicas than are named.
            let mut of_page = vec![homes[0]];
            of_page.extend((0..page % 3).map(|row| homes[7 + 5 * page + row]));
            for key in of_page {
                writer.push(&orders, key.0, key.1, &words_of(key, 0)).unwrap();
            }
            writer.end_page().unwrap();
        }
        let facts = writer.finish(&*medium).unwrap().facts;
        self.pages = facts.pages;
        self.name = super::bottom::file_name(3, 1);
        let edit = Edit { removed: Vec::new(), added: vec![facts] };
        self.lsm.bottom.install(&edit, 1, self.lsm.next_ticket).unwrap();
    }

    fn write(&mut self, key: RowKey) {
        self.change += 1;
        let words = words_of(key, self.change);
        self.lsm.reserve(4, 0, u64::MAX).unwrap();
        let origin = self.origin(key);
        let row = DirtyRow {
            table: key.0,
            key: key.1,
            dirty_since: 0,
            origin,
            stretch: None,
            words: &words,
        };
        let origin = self.lsm.append(row).unwrap();
        self.origins.insert(key, origin);
        self.rows.insert(key, Some(self.change));
    }

    fn delete(&mut self, key: RowKey) {
        let origin = self.origin(key);
        self.lsm.delete(key.0, key.1, origin);
        self.origins.remove(&key);
        self.rows.insert(key, None);
    }

    fn origin(&self, key: RowKey) -> Option<u32> {
        let below = self.rows.get(&key).copied().flatten().map_or(0, |_| IN_BOTTOM | 1);
        (key.0 == 1).then(|| self.origins.get(&key).copied().unwrap_or(below))
    }

    fn step(&mut self) {
        let key = key_of(self.below(2) as u16, self.below(KEYS));
        match self.below(3) {
            0 => self.delete(key),
            _ => self.write(key),
        }
    }

    /// The row of a key in the pages that a look-up wants, and the number of pages.
    fn look_up(&mut self, key: RowKey) -> (Option<Vec<f32>>, usize) {
        let ticket = self.lsm.begin_read();
        let mut seen: Vec<Want> = Vec::new();
        let mut words = None;
        while words.is_none() {
            let mut wants = Vec::new();
            match self.lsm.find(key.0, key.1, 0, &seen, &mut wants) {
                Found::Parked { words: row, .. } | Found::InMemory { words: row, .. } => {
                    words = Some(row.to_vec());
                }
                Found::Stored { .. } => {}
                Found::Absent => break,
            }
            let (lsm, pages) = (&self.lsm, self.lsm.pages());
            for want in &wants {
                let read = self.reader.read(&*pages, &[want.at], &mut |_, page| {
                    match lsm.resolve(key.0, key.1, want, page)? {
                        Resolved::Row { words: row, .. } => {
                            let before = words.replace(row.to_vec());
                            assert!(before.is_none_or(|before| before == row), "{key:?}");
                        }
                        Resolved::Other => {}
                        Resolved::Moved => panic!("{key:?} has moved"),
                    }
                    Ok(())
                });
                read.unwrap();
            }
            seen.extend(wants);
            seen.sort_unstable();
        }
        self.lsm.end_read(ticket);
        (words, seen.len())
    }

    fn check(&self) -> (Checked, Vec<Finding>) {
        let mut said = Vec::new();
        let checked = self.lsm.check(&mut |_, _| Ok(()), &mut |finding| said.push(finding));
        (checked.unwrap(), said)
    }
}

#[test]
fn a_row_is_found_in_the_top_or_on_each_page_that_has_it() {
    let mut fixture = Fixture::new(1);
    for _ in 0..2000 {
        fixture.step();
    }
    fixture.lsm.write_out().unwrap();
    let rows = fixture.rows.clone();
    let mut most = 0;
    for (key, row) in rows {
        let (words, wants) = fixture.look_up(key);
        most = most.max(wants);
        assert_eq!(words, row.map(|change| words_of(key, change).to_vec()), "{key:?}");
    }
    assert!(most >= CANDIDATES_MAX);
}

#[test]
fn a_sweep_gives_each_row_once_while_others_are_written_and_deleted() {
    for seed in 1..=2 {
        let mut fixture = Fixture::new(seed);
        for _ in 0..4500 {
            fixture.step();
        }
        for only in [Some(0), Some(1), None] {
            let is_of = |key: &RowKey| only.is_none_or(|only| only == key.0);
            let mut states: BTreeMap<RowKey, Vec<Option<u32>>> = BTreeMap::new();
            for (key, row) in fixture.rows.iter().filter(|(key, _)| is_of(key)) {
                states.insert(*key, vec![*row]);
            }
            let mut sweep = fixture.lsm.sweep(only);
            let (mut found, mut parts, mut reads): (BTreeMap<RowKey, u32>, _, _) =
                (BTreeMap::new(), 0, 0);
            loop {
                fixture.lsm.advance(&mut *sweep);
                let Fixture { reader, lsm, rows, .. } = &mut fixture;
                let mut take = |swept: &mut dyn Iterator<Item = SweptRow<'_>>| {
                    for row in swept {
                        let key = (row.table, row.key);
                        let change = row.words[2] as u32;
                        assert_eq!(row.words, words_of(key, change), "{key:?}");
                        assert!(is_of(&key), "{key:?}");
                        assert!(found.insert(key, change).is_none(), "{key:?} comes twice");
                        if lsm.is_newest(row.table, row.key, row.place) {
                            assert_eq!(rows.get(&key), Some(&Some(change)), "{key:?}");
                        }
                    }
                    Ok(())
                };
                let Some(report) = sweep.read(64, reader, &mut take).unwrap() else { break };
                (parts, reads) = (parts + 1, reads + report.pages);
                for _ in 0..10 {
                    let before = fixture.rows.clone();
                    fixture.step();
                    for (key, row) in fixture.rows.iter().filter(|(key, _)| is_of(key)) {
                        if before.get(key) != Some(row) {
                            states.entry(*key).or_insert_with(|| vec![None]).push(*row);
                        }
                    }
                }
            }
            fixture.lsm.end_read(sweep.ticket());
            assert!(parts > 4 && reads == u64::from(fixture.home_pages), "{parts} parts");
            for (key, states) in &states {
                let row = found.remove(key);
                match &states[..] {
                    // It is as it was all the time.
                    [state] => assert_eq!(row, *state, "{key:?}"),
                    states => {
                        assert!(row.is_none() || states.contains(&row), "{key:?}: {row:?}");
                    }
                }
            }
            assert!(found.is_empty(), "{found:?}");
        }
    }
}

#[test]
fn a_check_finds_all_rows_at_home_once() {
    let mut fixture = Fixture::new(3);
    let (checked, said) = fixture.check();
    assert!(said.is_empty(), "{said:?}");
    assert_eq!(checked, Checked { pages: u64::from(fixture.pages), rows: 2 * ROWS });
    for key in 0..100 {
        fixture.write(key_of(0, key));
    }
    fixture.lsm.write_out().unwrap();
    let (checked, said) = fixture.check();
    assert!(said.is_empty() && checked.rows == 2 * ROWS + 100, "{said:?}");
}

#[test]
fn a_check_names_pages_that_the_index_does_not_agree_with() {
    let fixture = Fixture::new(4);
    let layout = Shape::of(&fixture.lsm.facts).layout(1).unwrap();
    let sound = fixture.medium.contents(&fixture.name);
    let page_of = |page: u32| &sound[page as usize * PAGE_BYTES..][..PAGE_BYTES];
    let (home, replica) = (3, fixture.home_pages + 2);
    let mut cases: Vec<(u32, Vec<u8>, &str)> = vec![(home, vec![0; PAGE_BYTES], "zero")];
    cases.push((replica, page_of(replica + 1).to_vec(), "wrong place"));
    for page in [home, replica] {
        let of_other = layout.entry(page_of(9), 0);
        let own = layout.entry(page_of(page), 0);
        for ((table, key), expected) in
            [(of_other, "row 1 is not in the place"), (own, "is there twice"), ((5, 1), "table 5")]
        {
            let mut copy = vec![0.0f32; PAGE_BYTES / 4];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut copy);
            bytes.copy_from_slice(page_of(page));
            let rows = layout.rows_in(bytes).max(2);
            layout.put(bytes, 1, table, key, &words_of((table, key), 0));
            layout.seal(bytes, page, rows, 1);
            cases.push((page, bytes.to_vec(), expected));
        }
    }
    for (page, bytes, expected) in cases {
        let at = u64::from(page) * PAGE_BYTES as u64;
        fixture.medium.replace(&fixture.name, at, &bytes);
        let (checked, said) = fixture.check();
        let [Finding::Damage(error)] = &said[..] else { panic!("{said:?}") };
        let message = error.message();
        assert!(message.contains(expected) && message.contains(&fixture.name), "{message}");
        assert!(message.contains(&format!("page {page}")), "{message}");
        assert_eq!(checked.pages, u64::from(fixture.pages));
        fixture.medium.replace(&fixture.name, at, page_of(page));
    }
    assert!(fixture.check().1.is_empty());
}
