//! Checks of the claims of a record, before anything is built on them.
//!
//! A checksum proves that a record came from disk as it was written, not that it makes sense: a
//! fault of memory, or another program, writes nonsense with a valid checksum. So sizes are within
//! their bounds, ids are positions, names are distinct, counters leave room to count on. A record
//! that passes can be allocated and computed with; any other is `Corrupt`, or `Unsupported` when it
//! has a name that only a newer version knows.

use super::{
    ChangeOf, ClassCounters, ClassRecord, CommitRecord, RecordKind, TableChange, TableRecord,
    read_json,
};
use crate::config::{Merging, StorageKind};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::row::{Dtype, RowLayout};
use crate::storage;
use crate::store::files::state;
use std::collections::BTreeSet;

/// No counter of a store gets here in the life of a machine, and sums of some do not overflow.
const COUNTER_MAX: u64 = 1 << 56;
/// A piece takes at least this many bytes of the journal: two headers.
const PIECE_BYTES_MIN: u64 = 24;

/// An error of parameters that a caller may give is damage where they were stored.
fn stored<T>(result: Result<T>, what: &str) -> Result<T> {
    result.map_err(|e| Error::new(ErrorKind::Corrupt, format!("{what}: {}", e.message())))
}

impl ClassRecord {
    /// Refuses what no store writes as its next class after `classes`.
    pub(crate) fn verify(&self, classes: &[ClassRecord]) -> Result<()> {
        // The layout checks the other sizes.
        let Self { id, row_bytes, curve, .. } = self;
        if usize::from(*id) != classes.len() {
            bail!(Corrupt, "class {id} is recorded as number {}", classes.len());
        }
        let what = format!("class {id}");
        if *row_bytes == 0 || !row_bytes.is_multiple_of(4) {
            bail!(Corrupt, "{what}: row_bytes is {row_bytes}, expected a multiple of 4");
        }
        stored(RowLayout::new(Dtype::Float32, row_bytes / 4, 0), &what)?;
        stored(storage::check_class(&self.facts(0, Merging::default())), &what)?;
        if let Some(curve) = curve
            && !curve.is_usable()
        {
            bail!(
                Corrupt,
                "{what}: sizes of its device curve do not rise, or a rate is not above 0"
            );
        }
        Ok(())
    }
}

impl TableRecord {
    /// Refuses what no store writes as its next table after `tables`, dropped ones among them, in a
    /// file of `file_bytes`.
    pub(crate) fn verify<'a>(
        &self,
        tables: impl Iterator<Item = &'a TableRecord> + Clone,
        classes: &[ClassRecord],
        file_bytes: u64,
    ) -> Result<()> {
        let Self { id, class, spec, partitions, packed, born, dropped } = self;
        let before = tables.clone().count();
        if usize::from(*id) != before {
            bail!(Corrupt, "table {id} is recorded as number {before}");
        }
        let what = format!("table {id}");
        let mut tables = tables.filter(|table| !table.dropped);
        if !dropped && tables.any(|t| t.spec.name == spec.name) {
            bail!(Corrupt, "{what}: the name {:?} is another table's", spec.name);
        }
        let layout = stored(spec.validate(), &what)?;
        match classes.get(usize::from(*class)) {
            Some(class) if class.is_for(layout.row_bytes(), spec.storage) => {}
            Some(class) => bail!(
                Corrupt,
                "{what}: its rows take {} bytes in storage \"{}\", those of its class {} take {} \
                 in \"{}\"",
                layout.row_bytes(),
                spec.storage.name(),
                class.id,
                class.row_bytes,
                class.storage.name()
            ),
            None => bail!(Corrupt, "{what}: its class {class} does not exist"),
        }
        // One in an lsm of which few ids are expected to have a row has both.
        let may_have_both =
            spec.storage.is_direct() || spec.storage.has_bottom() && spec.expected_rows.is_some();
        let has_both = spec.num_embeddings.is_some() && partitions.is_some();
        // There are journals that leave out into how many parts a region is divided, always one.
        let has_none =
            spec.num_embeddings.is_none() && partitions.is_none() && !spec.storage.is_direct();
        if has_none || (has_both && !may_have_both) {
            bail!(
                Corrupt,
                "{what}: num_embeddings is {:?} and partitions is {partitions:?}, expected one",
                spec.num_embeddings
            );
        }
        if *packed && (spec.storage != StorageKind::Log || self.dense_ids().is_none()) {
            bail!(
                Corrupt,
                "{what}: its index is packed, and it is no table of a log that is stored by id"
            );
        }
        // An index is allocated before its pieces are read, and all of them are in this file.
        let pieces = match (self.dense_ids(), partitions) {
            (Some(rows), _) => match spec.storage {
                StorageKind::Log if !packed => rows.saturating_mul(4),
                // A bit for each id, and the words of those that have a row, in an lsm in the top.
                StorageKind::Log | StorageKind::Lsm | StorageKind::Pages => rows / 8,
                StorageKind::Pmem => 0,
            },
            _ if spec.storage.is_direct() => 0,
            (None, partitions) => u64::from(partitions.unwrap_or(0)) * PIECE_BYTES_MIN,
        };
        if !born && !dropped && pieces > file_bytes {
            bail!(
                Corrupt,
                "{what}: the pieces of its index take at least {pieces} bytes, the file has \
                 {file_bytes}"
            );
        }
        Ok(())
    }
}

impl TableChange {
    /// Refuses what no store does to this one of its `tables`.
    pub(crate) fn verify(&self, table: &TableRecord, tables: &[TableRecord]) -> Result<()> {
        let mut changed = table.clone();
        self.change.apply(&mut changed);
        let what = format!("a change of table {}", table.id);
        if table.spec.name != self.name {
            bail!(Corrupt, "{what}: its name is {:?}, and was {:?}", table.spec.name, self.name);
        }
        match &self.change {
            ChangeOf::Drop => return Ok(()),
            ChangeOf::Rename(name) => {
                if tables.iter().any(|other| other.spec.name == *name) {
                    bail!(Corrupt, "{what}: the name {name:?} is another table's");
                }
            }
            ChangeOf::Grow(ids) => {
                if table.spec.num_embeddings.is_none_or(|before| before > *ids) {
                    let before = table.spec.num_embeddings;
                    bail!(Corrupt, "{what}: num_embeddings goes from {before:?} to {ids}");
                }
            }
        }
        stored(changed.spec.validate(), &what).map(drop)
    }
}

impl CommitRecord {
    /// Refuses what no commit says of itself.
    pub(crate) fn verify(&self) -> Result<()> {
        let sequence = self.info.sequence;
        let counters = self.tables.iter().flat_map(|t| [t.rows, t.updates]);
        let counters = counters.chain(self.classes.iter().map(|c| c.sequence));
        if let Some(counter) = counters.chain([sequence]).find(|n| *n > COUNTER_MAX) {
            bail!(Corrupt, "commit {sequence}: a counter is {counter}, beyond what can be counted");
        }
        let began = |c: &&ClassCounters| c.began.is_some_and(|began| began > c.sequence);
        if let Some(class) = self.classes.iter().find(began) {
            bail!(
                Corrupt,
                "commit {sequence}: class {} began at sequence {:?} and ended at {}",
                class.id,
                class.began,
                class.sequence
            );
        }
        if sequence == 0 || self.oldest_kept == 0 || self.oldest_kept > sequence {
            bail!(Corrupt, "commit {sequence}: the oldest kept is {}", self.oldest_kept);
        }
        let Some(state) = &self.state else { return Ok(()) };
        if state.file != state::name_of(sequence) {
            bail!(Corrupt, "commit {sequence}: its state file is named {:?}", state.file);
        }
        let bytes = state.strings.iter().try_fold(0u64, |sum, (_, len)| sum.checked_add(*len));
        if bytes.is_none_or(|bytes| bytes > COUNTER_MAX) {
            bail!(Corrupt, "commit {sequence}: its state is longer than a file can be");
        }
        let names: BTreeSet<&str> = state.strings.iter().map(|(name, _)| name.as_str()).collect();
        if names.len() != state.strings.len() {
            bail!(Corrupt, "commit {sequence}: two byte strings of its state have one name");
        }
        Ok(())
    }

    /// Refuses a commit whose counters are not those of the tables, by id, and classes before it.
    pub(crate) fn verify_catalog(
        &self,
        tables: impl ExactSizeIterator<Item = u16>,
        classes: usize,
    ) -> Result<()> {
        let count = tables.len();
        let are_counted = self.tables.iter().map(|t| t.id).eq(tables)
            && self.classes.iter().map(|c| usize::from(c.id)).eq(0..classes);
        if !are_counted {
            bail!(
                Corrupt,
                "commit {} counts {} tables and {} classes, the journal has {count} and {classes}",
                self.info.sequence,
                self.tables.len(),
                self.classes.len()
            );
        }
        Ok(())
    }
}

/// Refuses a catalog that this build would not read again: classes, then tables, as the records
/// that a journal file begins with. Its pieces follow, so their bytes are not looked at.
pub(crate) fn verify_catalog(records: &[(RecordKind, Vec<u8>)]) -> Result<()> {
    let (mut classes, mut tables): (Vec<ClassRecord>, Vec<TableRecord>) = Default::default();
    for (kind, payload) in records {
        match kind {
            RecordKind::Class => {
                let class: ClassRecord = read_json(payload, "class")?;
                class.verify(&classes)?;
                classes.push(class);
            }
            RecordKind::Table => {
                let table: TableRecord = read_json(payload, "table")?;
                table.verify(tables.iter(), &classes, u64::MAX)?;
                tables.push(table);
            }
            other => bail!(Corrupt, "a catalog has a record of kind {other:?}"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"{"id":0,"class":0,"spec":{"name":"t","embedding_dim":4,
        "num_embeddings":1000,"expected_rows":null,"dtype":"float32",
        "optimizer":{"kind":"adagrad","bias_correction":"global","initial_accumulator":0.0},
        "initializer":{"constant":0.0}},"partitions":null,"born":true}"#;
    const CLASS: &str =
        r#"{"id":0,"row_bytes":32,"page_bytes":4096,"segment_bytes":65536,"curve":null}"#;
    const COMMIT: &str = r#"{"info":{"sequence":7,"step":1,"meta":"","unix_time":0,
        "rows_flushed":0,"bytes_written":0,"state_bytes":3},
        "state":{"file":"state-0000000007","strings":[["a",1],["b",2]],"checksum":0},
        "tables":[{"id":0,"rows":9,"updates":3}],"classes":[{"id":0,"sequence":4}],
        "oldest_kept":6}"#;

    /// The record with one place of its text replaced.
    fn changed<T: serde::de::DeserializeOwned>(text: &str, from: &str, to: &str) -> Result<T> {
        assert!(text.contains(from), "{from}");
        read_json(text.replacen(from, to, 1).as_bytes(), "test")
    }

    fn table(from: &str, to: &str, file_bytes: u64) -> Result<()> {
        let class: ClassRecord = changed(CLASS, "", "")?;
        changed::<TableRecord>(TABLE, from, to)?.verify([].iter(), &[class], file_bytes)
    }

    #[test]
    fn names_of_newer_versions_are_unsupported_and_named() {
        for (from, to) in [
            ("float32", "float8"),
            ("adagrad", "lamb"),
            ("\"global\"", "\"table\""),
            ("constant", "xavier"),
            ("\"initial_accumulator\"", "\"momentum\":0,\"initial_accumulator\""),
        ] {
            let error = table(from, to, 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let name = to.split('"').find(|part| !part.is_empty()).unwrap_or(to);
            assert!(error.message().contains(name), "{error}");
            assert!(error.message().starts_with("a test record has an unknown"), "{error}");
        }
        let error = table("\"dtype\"", "\"storage\":\"tape\",\"dtype\"", 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains("tape"), "{error}");
        assert_eq!(table("\"id\":0", "\"id\":", 0).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_table_that_the_catalog_cannot_have_is_corrupt() {
        table("", "", 0).unwrap();
        table("true", "false", 4000).unwrap();
        table("null,\"born\":true", "null,\"packed\":true,\"born\":false", 125).unwrap();
        for (from, to, file_bytes) in [
            ("\"id\":0", "\"id\":1", 0),
            ("\"class\":0", "\"class\":1", 0),
            ("\"embedding_dim\":4", "\"embedding_dim\":5", 0),
            ("\"embedding_dim\":4", "\"embedding_dim\":18446744073709551615", 0),
            ("\"num_embeddings\":1000", "\"num_embeddings\":0", 0),
            ("\"num_embeddings\":1000", "\"num_embeddings\":null", 0),
            ("\"partitions\":null", "\"partitions\":16", 0),
            ("\"name\":\"t\"", "\"name\":\"\"", 0),
            ("true", "false", 3999),
            ("\"dtype\"", "\"storage\":\"lsm\",\"dtype\"", 4000),
            ("null,\"born\":true", "null,\"packed\":true,\"born\":false", 124),
        ] {
            let error = table(from, to, file_bytes).expect_err(to);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{to}: {error}");
        }
        let other: TableRecord = changed(TABLE, "", "").unwrap();
        let twin = changed::<TableRecord>(TABLE, "\"id\":0", "\"id\":1").unwrap();
        let class: ClassRecord = changed(CLASS, "", "").unwrap();
        let error = twin.verify([other].iter(), &[class], 0).unwrap_err();
        assert!(error.message().contains("another table's"), "{error}");
    }

    #[test]
    fn a_class_that_no_store_creates_is_corrupt() {
        let curve = |points: &str| format!("\"curve\":{{\"depth\":64,\"points\":[{points}]}}");
        let point =
            |bytes: u32, rate: f64| format!("{{\"bytes\":{bytes},\"requests_per_s\":{rate}}}");
        let sound = curve(&format!("{},{}", point(512, 9.0), point(1024, 8.0)));
        changed::<ClassRecord>(CLASS, "\"curve\":null", &sound).unwrap().verify(&[]).unwrap();
        for (from, to) in [
            ("\"id\":0", "\"id\":1"),
            ("\"row_bytes\":32", "\"row_bytes\":0"),
            ("\"row_bytes\":32", "\"row_bytes\":30"),
            ("\"row_bytes\":32", "\"row_bytes\":8192"),
            ("\"row_bytes\":32", "\"row_bytes\":18446744073709551608"),
            ("\"page_bytes\":4096", "\"page_bytes\":0"),
            ("\"page_bytes\":4096", "\"page_bytes\":4095"),
            ("\"segment_bytes\":65536", "\"segment_bytes\":0"),
            ("\"segment_bytes\":65536", "\"segment_bytes\":32768"),
            ("\"segment_bytes\":65536", "\"segment_bytes\":8388608"),
            ("\"curve\":null", &curve(&point(512, 0.0))),
            ("\"curve\":null", &curve(&format!("{},{}", point(512, 1.0), point(512, 1.0)))),
        ] {
            let error = changed::<ClassRecord>(CLASS, from, to).unwrap().verify(&[]).expect_err(to);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{to}: {error}");
        }
    }

    #[test]
    fn a_commit_that_contradicts_itself_is_corrupt() {
        let sound: CommitRecord = changed(COMMIT, "", "").unwrap();
        sound.verify().unwrap();
        sound.verify_catalog([0].into_iter(), 1).unwrap();
        for (tables, classes) in [(vec![0, 1], 1), (vec![1], 1), (vec![0], 0), (vec![], 1)] {
            assert!(sound.verify_catalog(tables.into_iter(), classes).is_err());
        }
        for (from, to) in [
            ("\"sequence\":7", "\"sequence\":18446744073709551615"),
            ("\"sequence\":7", "\"sequence\":8"),
            ("\"oldest_kept\":6", "\"oldest_kept\":8"),
            ("\"oldest_kept\":6", "\"oldest_kept\":0"),
            ("state-0000000007", "../elsewhere"),
            ("[\"a\",1]", "[\"a\",18446744073709551615]"),
            ("[\"a\",1]", "[\"b\",1]"),
            ("\"rows\":9", "\"rows\":18446744073709551615"),
            ("\"updates\":3", "\"updates\":18446744073709551615"),
            ("\"sequence\":4", "\"sequence\":18446744073709551615"),
        ] {
            let record = changed::<CommitRecord>(COMMIT, from, to).unwrap();
            let error = record.verify().expect_err(to);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{to}: {error}");
        }
    }
}
