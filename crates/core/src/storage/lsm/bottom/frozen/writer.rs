//! Writes a frozen partition: all rows at home, then pages of replicas.

use super::builder::IndexBuilder;
use super::footer::{footer_bytes, write_footer};
use super::index::LISTED;
use super::{CANDIDATES_MOST, Frozen, FrozenTable};
use crate::error::{Result, bail};
use crate::io::{Medium, Queue};
use crate::storage::lsm::bottom::file::{Shape, VERSION_FROZEN};
use crate::storage::lsm::bottom::order::{Orders, PlaceRange};
use crate::storage::lsm::bottom::page_writer::{Ending, Finished, PageWriter};

/// A frozen partition that is being written. Its owner says the order of the rows.
pub(crate) struct FrozenWriter {
    pages: PageWriter,
    candidates_max: usize,
    /// The index of each table that has rows, in the order of tables.
    tables: Vec<IndexBuilder>,
    /// The table of the last row in there.
    last: usize,
    rows: u64,
    /// Pages with rows at home, once these have ended.
    home_pages: Option<u32>,
    /// Rows of the page of replicas that is open.
    replicas: usize,
}

impl FrozenWriter {
    /// Creates the file of partition `number`, which must not exist. The buffers of `queue` are
    /// what is written at once. Of a row at most `candidates_max` pages will be named, 1 to
    /// [`CANDIDATES_MOST`].
    pub(crate) fn create(
        medium: &dyn Medium,
        shape: &Shape,
        number: u32,
        merge: u64,
        candidates_max: usize,
        queue: Box<dyn Queue>,
    ) -> Result<Self> {
        if !(1..=CANDIDATES_MOST).contains(&candidates_max) {
            bail!(
                Misuse,
                "{candidates_max} candidate pages of a row, expected 1 to {CANDIDATES_MOST}"
            );
        }
        let pages = PageWriter::create(medium, shape, number, merge, queue)?;
        Ok(Self {
            pages,
            candidates_max,
            tables: Vec::new(),
            last: 0,
            rows: 0,
            home_pages: None,
            replicas: 0,
        })
    }

    /// The number of the page that the next row comes to.
    #[cfg(test)]
    pub(crate) fn page(&self) -> u32 {
        self.pages.page()
    }

    /// Adds the next row: at home until [`end_homes`](Self::end_homes), where pages end when they
    /// are full, then to the page of replicas that is open. May wait for a buffer to be written.
    ///
    /// *Errors*: `Misuse` for a table without an order, a second home, a replica of a row without
    /// one, and a page of replicas that is full; some of these only when `finish` finds them.
    /// `Full` without room on disk. After any error the file can only be abandoned, all else is
    /// `Poisoned`.
    pub(crate) fn push(
        &mut self,
        orders: &Orders,
        table: u16,
        key: u64,
        row: &[f32],
    ) -> Result<()> {
        self.pages.check_sound()?;
        let noted = self.note(orders, table, key);
        self.pages.note_failure(noted)?;
        self.pages.put(table, key, row)
    }

    /// Notes which page the next row comes to.
    fn note(&mut self, orders: &Orders, table: u16, key: u64) -> Result<()> {
        let page = self.pages.page();
        if page >= LISTED {
            bail!(Full, "a frozen file has at most {} pages; use larger ones", LISTED - 1);
        }
        if self.tables.get(self.last).is_none_or(|last| last.table() != table) {
            self.last = match self.tables.binary_search_by_key(&table, IndexBuilder::table) {
                Ok(at) => at,
                Err(at) => {
                    self.tables.insert(at, IndexBuilder::new(table, orders.known(table)?));
                    at
                }
            };
        }
        let index = &mut self.tables[self.last];
        match self.home_pages {
            None => {
                index.push_home(key, page)?;
                self.rows += 1;
                Ok(())
            }
            Some(_) if self.replicas == self.pages.layout().rows_per_page => {
                self.misuse("a page of replicas is full; end it before the next row")
            }
            Some(_) => {
                self.replicas += 1;
                index.push_replica(key, page)
            }
        }
    }

    /// All rows are at home: what is pushed from here on are replicas.
    pub(crate) fn end_homes(&mut self) -> Result<()> {
        self.pages.check_sound()?;
        let ended = match self.home_pages {
            None => self.pages.end_page(),
            Some(_) => self.misuse("its rows at home have ended before"),
        };
        self.home_pages = Some(self.pages.page() - 1);
        self.pages.note_failure(ended)
    }

    /// Ends a page: of replicas, which has a row at least, or of rows at home, full or not.
    pub(crate) fn end_page(&mut self) -> Result<()> {
        self.pages.check_sound()?;
        let ended = match (self.home_pages, std::mem::take(&mut self.replicas)) {
            (Some(_), 0) => self.misuse("a page of replicas ends that has no row"),
            _ => self.pages.end_page(),
        };
        self.pages.note_failure(ended)
    }

    fn misuse<T>(&self, what: &str) -> Result<T> {
        bail!(Misuse, "{}, page {}: {what}", self.pages.name(), self.pages.page())
    }

    /// Ends the file and makes it durable with its name. It has the rows of all places. After an
    /// error it is removed.
    pub(crate) fn finish(self, medium: &dyn Medium) -> Result<Finished> {
        self.pages.check_sound()?;
        let name = self.pages.name().to_owned();
        self.finish_file(medium).map_err(|error| match medium.remove(&name) {
            Ok(()) => error,
            Err(also) => error.followed_by(format_args!("{name} is left over: {also}")),
        })
    }

    fn finish_file(mut self, medium: &dyn Medium) -> Result<Finished> {
        if self.home_pages.is_none() {
            self.end_homes()?;
        }
        let home_pages = self.home_pages.unwrap_or(0);
        let mut tables = Vec::with_capacity(self.tables.len());
        for builder in self.tables {
            let (table, order, rows) = (builder.table(), builder.order(), builder.rows());
            let index = builder.finish(home_pages, self.candidates_max)?;
            tables.push(FrozenTable { table, order, rows, index });
        }
        let (candidates_max, tables) = (self.candidates_max, tables.into());
        let frozen = Frozen { candidates_max, home_pages, tables };
        let ending = Ending {
            version: VERSION_FROZEN,
            range: PlaceRange::ALL,
            rows: self.rows,
            sections: frozen.tables.len(),
            footer_bytes: footer_bytes(&frozen),
        };
        self.pages.finish(medium, &ending, |into| write_footer(&frozen, into))
    }

    /// Gives the file up and removes it.
    pub(crate) fn abandon(self, medium: &dyn Medium) -> Result<()> {
        self.pages.abandon(medium)
    }
}
