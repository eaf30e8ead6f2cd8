//! Read rate of the device under a store, measured on the store's own pages.

use crate::error::{Result, bail};
use crate::io::measure::random_read_rate_in;
use crate::store::Store;

impl Store {
    /// Requests per second of random reads of `bytes` each, `depth` in flight, on the written pages
    /// of the largest row class: what the store's own reads are measured against. `None` stands for
    /// the class's page and read depth.
    ///
    /// *Errors*: `Misuse` while no segment was written to its end, `Io`. *Blocking*: for about
    /// `seconds`; verbs go on meanwhile, a commit waits.
    pub fn device_rate(
        &self,
        bytes: Option<usize>,
        depth: Option<usize>,
        seconds: f64,
    ) -> Result<f64> {
        let engine = self.inner.planned_engine()?;
        let Some(class) = engine.classes.iter().max_by_key(|c| c.log.lock().disk_bytes()) else {
            bail!(Misuse, "store {} has no rows to read", self.inner.path.display());
        };
        let (ticket, areas) = {
            let mut log = class.log.lock();
            (log.begin_read(), log.areas())
        };
        let rate = random_read_rate_in(
            &*self.inner.medium,
            &areas.file,
            &areas.begins,
            areas.area_bytes,
            bytes.unwrap_or(class.record.page_bytes),
            depth.unwrap_or(class.tier().plan.read_depth),
            seconds,
        );
        class.log.lock().end_read(ticket);
        rate
    }
}
