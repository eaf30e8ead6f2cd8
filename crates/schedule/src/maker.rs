//! Making a schedule: keys are taken in the order of their uses, and divided by their hash.

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::file::{Shape, Writer};
use crate::keys::{NextUses, mix};
use crate::next::PartUses;
use crate::streams::{Forwards, Streams};
use std::path::{Path, PathBuf};

/// Parts of all tables together, as far as there are no more tables; and of one table.
const PARTS: usize = 2048;
const PARTS_OF_TABLE: usize = 256;
/// Memory of the keys that are not yet written to the temporary file, at most.
const KEYS_BYTES: usize = 64 << 20;
const CHUNK_BYTES: (usize, usize) = (4 << 10, 64 << 10);
const MARKS_CHUNK_BYTES: usize = 4 << 10;
const SHAPES_CHUNK_BYTES: usize = 64 << 10;
const TABLES_MAX: usize = 1 << 14;
/// Batches between two calls of the progress function, where answers are merged.
const TELL_EVERY: u64 = 1 << 10;

/// The keys of one table in one batch.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The number of the table, by its place among the names.
    pub table: u32,
    /// Its keys, in any order, equal ones included.
    pub keys: &'a [u64],
}

/// The batches behind those of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Nothing, or what was added behind [`Maker::end`].
    Here,
    /// The same batches again, and so on.
    Repeats,
}

/// Takes the keys of batches and writes a schedule.
#[derive(Debug)]
pub struct Maker {
    path: PathBuf,
    tables: Vec<Parts>,
    names: Vec<String>,
    stretch_batches: u64,
    keys: Streams,
    marks: Streams,
    /// Uses of each part in the stretch at hand.
    in_stretch: Vec<u32>,
    /// Parts that have any.
    touched: Vec<u32>,
    /// Of each use, the part of its table.
    places: Streams,
    /// Of each batch, how many uses it has of which tables; and its digest.
    shapes: Streams,
    batches: u64,
    /// The stretch at hand, and how many batches it has.
    stretch: u64,
    stretch_has: u64,
    /// The batches of the schedule, where others come behind them.
    own: Option<u64>,
}

/// The parts of a table.
#[derive(Clone, Copy, Debug)]
struct Parts {
    first: usize,
    bits: u32,
}

impl Parts {
    #[inline(always)]
    fn of(self, mixed: u64) -> usize {
        mixed.checked_shr(64 - self.bits).unwrap_or(0) as usize
    }
}

impl Maker {
    /// A schedule to be written to `path`, of batches that read these tables, in stretches of
    /// `stretch_batches`. A temporary file beside it has 9 bytes for each use, later 11.
    ///
    /// Errors: `Misuse` for a number of tables or batches that is out of range; `Io`.
    pub fn new(path: &Path, tables: &[String], stretch_batches: u32) -> Result<Self> {
        if tables.is_empty() || tables.len() > TABLES_MAX {
            let found = tables.len();
            return Err(Error::misuse(format!("{found} tables, expected 1 to {TABLES_MAX}")));
        }
        if stretch_batches == 0 {
            return Err(Error::misuse("stretch_batches is 0, expected at least 1"));
        }
        let of_table = (PARTS / tables.len()).clamp(1, PARTS_OF_TABLE);
        let bits = of_table.ilog2();
        let count = tables.len() << bits;
        let chunk_bytes = (KEYS_BYTES / count).next_power_of_two() / 2;
        let chunk_bytes = chunk_bytes.clamp(CHUNK_BYTES.0, CHUNK_BYTES.1);
        let parts = |table| Parts { first: table << bits, bits };
        Ok(Self {
            path: path.to_owned(),
            tables: (0..tables.len()).map(parts).collect(),
            names: tables.to_vec(),
            stretch_batches: stretch_batches.into(),
            keys: Streams::new(path, count, chunk_bytes)?,
            marks: Streams::new(path, count, MARKS_CHUNK_BYTES)?,
            in_stretch: vec![0; count],
            touched: Vec::new(),
            places: Streams::new(path, 1, SHAPES_CHUNK_BYTES)?,
            shapes: Streams::new(path, 1, SHAPES_CHUNK_BYTES)?,
            batches: 0,
            stretch: 0,
            stretch_has: 0,
            own: None,
        })
    }

    /// Ends the schedule: the batches added so far are its batches. Batches added from here on only
    /// tell what follows them, from a new stretch on.
    ///
    /// Errors: `Misuse` when it was said before, or there is no batch; `Io`.
    pub fn end(&mut self) -> Result<()> {
        if self.own.is_some() || self.batches == 0 {
            return Err(Error::misuse("a schedule ends once, behind one batch at least"));
        }
        self.own = Some(self.batches);
        self.end_stretch()
    }

    /// Takes the keys of the next batch: each table once, in ascending order of their numbers.
    ///
    /// Errors: `Misuse` for a table that there is not, or out of order; `Io`.
    pub fn add(&mut self, batch: &[Part<'_>]) -> Result<()> {
        let mut least = 0;
        for part in batch {
            if part.table < least || part.table as usize >= self.tables.len() {
                let (table, count) = (part.table, self.tables.len());
                return Err(Error::misuse(format!(
                    "table {table}, expected an ascending number below {count}"
                )));
            }
            if u32::try_from(part.keys.len()).is_err() {
                let found = part.keys.len();
                return Err(Error::misuse(format!("{found} keys of a batch, expected below 2^32")));
            }
            least = part.table + 1;
        }
        if self.stretch_has == self.stretch_batches {
            self.end_stretch()?;
        }
        let mut digest = Digest::default();
        self.shapes.push(0, &(batch.len() as u32).to_le_bytes())?;
        for part in batch {
            digest.add(part.table, part.keys);
            self.shapes.push(0, &part.table.to_le_bytes())?;
            self.shapes.push(0, &(part.keys.len() as u32).to_le_bytes())?;
            self.add_part(part)?;
        }
        self.shapes.push(0, &(digest.value() as u32).to_le_bytes())?;
        self.batches += 1;
        self.stretch_has += 1;
        Ok(())
    }

    fn add_part(&mut self, part: &Part<'_>) -> Result<()> {
        let parts = self.tables[part.table as usize];
        for key in part.keys {
            let place = parts.of(mix(*key));
            let stream = parts.first + place;
            self.keys.push(stream, &key.to_le_bytes())?;
            self.places.push(0, &[place as u8])?;
            let uses = &mut self.in_stretch[stream];
            if *uses == 0 {
                self.touched.push(stream as u32);
            }
            *uses += 1;
            if *uses == u32::MAX {
                self.mark(stream)?;
            }
        }
        Ok(())
    }

    /// Notes how many uses of each part the stretch at hand has, and begins another.
    fn end_stretch(&mut self) -> Result<()> {
        for stream in std::mem::take(&mut self.touched) {
            self.mark(stream as usize)?;
        }
        self.stretch += u64::from(self.stretch_has > 0);
        self.stretch_has = 0;
        Ok(())
    }

    fn mark(&mut self, stream: usize) -> Result<()> {
        let uses = std::mem::take(&mut self.in_stretch[stream]);
        let mark = self.stretch << 32 | u64::from(uses);
        self.marks.push(stream, &mark.to_le_bytes())
    }

    /// Uses that it has taken.
    pub fn uses(&self) -> u64 {
        self.places.len(0)
    }

    /// Writes the schedule; returns once it is on disk. `progress` is told which share is done, and
    /// stops the work with false.
    ///
    /// Errors: `Misuse` without a batch, and where batches come again behind which others come;
    /// `Stopped`; `Io`. Nothing is at the path then, or what was there before.
    pub fn finish(mut self, ends: Ends, mut progress: impl FnMut(f64) -> bool) -> Result<()> {
        let batches = self.own.unwrap_or(self.batches);
        let is_clear = ends == Ends::Here || self.own.is_none();
        if batches == 0 || !is_clear {
            let of = self.path.display();
            return Err(Error::misuse(format!(
                "{of} would have {batches} batches, expected at least 1, and nothing behind those \
                 that come again"
            )));
        }
        self.end_stretch()?;
        let repeats = (ends == Ends::Repeats).then_some(self.stretch);
        let answers = self.answers(repeats, &mut progress)?;
        self.write(&answers, batches, ends == Ends::Repeats, &mut progress)
    }

    /// The next uses of all parts, those of the last uses of each first.
    fn answers(
        &self,
        repeats: Option<u64>,
        progress: &mut impl FnMut(f64) -> bool,
    ) -> Result<Streams> {
        let count = self.in_stretch.len();
        let mut answers = Streams::new(&self.path, count, CHUNK_BYTES.0)?;
        let mut known = NextUses::new();
        for part in 0..count {
            let uses = PartUses { keys: &self.keys, marks: &self.marks, part };
            uses.next_uses(repeats, &mut known, &mut answers)?;
            go_on(progress((part + 1) as f64 / count as f64 * 0.8))?;
        }
        Ok(answers)
    }

    fn write(
        &self,
        answers: &Streams,
        batches: u64,
        repeats: bool,
        progress: &mut impl FnMut(f64) -> bool,
    ) -> Result<()> {
        let mut writer = Writer::new(&self.path, &self.names)?;
        let mut shapes = self.shapes.forwards(0);
        let mut places = self.places.forwards(0);
        let mut cursors: Vec<_> = (0..self.keys_parts()).map(|p| answers.backwards(p)).collect();
        let (mut shape, mut next) = (Shape::default(), Vec::new());
        for batch in 0..batches {
            read_shape(&mut shapes, &mut shape)?;
            next.clear();
            for (table, uses) in &shape.parts {
                let first = self.tables[*table as usize].first;
                for _ in 0..*uses {
                    let [place] = places.take()?;
                    let until = cursors[first + usize::from(place)].take()?;
                    next.push(u16::from_le_bytes(until.expect("an answer for each use")));
                }
            }
            writer.write(&shape, &next)?;
            if batch.is_multiple_of(TELL_EVERY) {
                go_on(progress(0.8 + 0.2 * batch as f64 / batches as f64))?;
            }
        }
        writer.finish(self.stretch_batches as u32, repeats)?;
        progress(1.0);
        Ok(())
    }

    fn keys_parts(&self) -> usize {
        self.in_stretch.len()
    }
}

fn read_shape(shapes: &mut Forwards<'_>, shape: &mut Shape) -> Result<()> {
    let mut number = || shapes.take().map(u32::from_le_bytes);
    shape.parts.clear();
    for _ in 0..number()? {
        shape.parts.push((number()?, number()?));
    }
    shape.digest = number()?;
    Ok(())
}

fn go_on(goes_on: bool) -> Result<()> {
    let stopped = || Error::new(crate::ErrorKind::Stopped, "the schedule was not finished");
    if goes_on { Ok(()) } else { Err(stopped()) }
}
