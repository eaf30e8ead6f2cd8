//! Microsoft FASTER (C++): a hash index in memory over a hybrid log, whose tail is in memory and
//! changed in place. Built only where a checkout is given.
//!
//! The log lives as long as the process: a run writes all rows first, as recovering a log of this
//! size is what its users report trouble with. Only the tail of it is in memory afterwards.
#![cfg_attr(
    faster,
    expect(unsafe_code, reason = "FASTER is reached through a C interface of our own")
)]

use serde::{Deserialize, Serialize};

use super::Kind;
use crate::error::Doing;
use crate::settings::Mode;

pub(super) const KIND: Kind = Kind {
    name: "faster",
    version: || {
        let commit = option_env!("FASTER_VERSION").unwrap_or_default();
        format!("FASTER C++ {commit}").trim_end().into()
    },
    absent: || {
        let why = "built without it: make peers FASTER=/path/to/a/checkout of microsoft/FASTER";
        (!cfg!(faster)).then(|| why.into())
    },
    defaults: |mode| serde_json::to_value(Options::of(mode)).doing(|| "faster: options".into()),
    #[cfg(faster)]
    open: |settings, purpose| Ok(Box::new(store::Faster::open(settings, purpose)?)),
    #[cfg(not(faster))]
    open: |settings, _| Err(settings.wrong("built without it".into())),
    keeps_rows: false,
    makes: &["log"],
};

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Options {
    /// Rows per bucket of the hash table, 7 of which fit; more are in chained buckets.
    rows_per_bucket: u64,
    /// Share of the log in memory whose rows are changed in place.
    mutable_fraction: f64,
    /// Share of the memory beside the index that caches rows read from the log on disk.
    read_cache_share: f64,
}

impl Options {
    fn of(mode: Mode) -> Self {
        let read_cache_share = match mode {
            // Rows that are read are written back, and so they are at the log's tail, in memory.
            Mode::Train | Mode::Window | Mode::Update | Mode::YcsbF => 0.0,
            Mode::YcsbA => 0.3,
            Mode::YcsbB => 0.7,
            Mode::Read | Mode::YcsbC => 0.9,
        };
        Self { rows_per_bucket: 16, mutable_fraction: 0.9, read_cache_share }
    }
}

#[cfg(faster)]
mod store {
    use std::ffi::{CStr, CString, c_char, c_void};

    use serde_json::{Map, Value, json};

    use super::Options;
    use crate::engines::{Engine, Figures, Purpose};
    use crate::error::{Doing, Error, Result};
    use crate::settings::Settings;

    /// Bytes of a page of the log, as build.rs sets them.
    const PAGE_BYTES: u64 = 1 << 20;
    /// FASTER wants four pages that do not change, two that do.
    const PAGES_MIN: u64 = 6;
    /// A bucket is a cache line of 7 entries and a link.
    const BUCKET_BYTES: u64 = 64;
    /// Requests in flight and everything else: measured as peak memory less index and log.
    const UNCOUNTED_BYTES: u64 = 12 << 20;
    /// Room for a message.
    const MESSAGE_BYTES: usize = 256;

    unsafe extern "C" {
        fn peers_faster_open(
            place: *const c_char,
            words: u32,
            buckets: u64,
            log_bytes: u64,
            mutable_fraction: f64,
            read_cache_bytes: u64,
            error: *mut c_char,
            capacity: usize,
        ) -> *mut c_void;
        fn peers_faster_get(
            store: *mut c_void,
            keys: *const u64,
            count: usize,
            rows: *mut f32,
        ) -> usize;
        fn peers_faster_put(
            store: *mut c_void,
            keys: *const u64,
            count: usize,
            rows: *const f32,
        ) -> usize;
        fn peers_faster_log_bytes(store: *mut c_void) -> u64;
        fn peers_faster_close(store: *mut c_void);
    }

    pub(super) struct Faster {
        /// An open store; belongs to the thread that opened it, as FASTER's sessions do.
        store: *mut c_void,
        words: usize,
        options: Options,
        buckets: u64,
        log_bytes: u64,
        read_cache_bytes: u64,
    }

    impl Faster {
        pub(super) fn open(settings: &Settings, purpose: Purpose) -> Result<Self> {
            let options: Options = settings.options(Options::of(settings.mode))?;
            if options.rows_per_bucket == 0 {
                return Err(settings.wrong("rows_per_bucket: 0, expected above 0".into()));
            }
            let rows = if purpose == Purpose::Load { 1 } else { settings.rows };
            let buckets = (rows / options.rows_per_bucket).max(1).next_power_of_two();
            // Chains end half empty: a bucket more than its rows fill, on the average of half.
            let index_bytes = BUCKET_BYTES * buckets.max(rows / 7 + buckets / 2);
            let caching = options.read_cache_share > 0.0;
            let pages_min = PAGES_MIN * (1 + u64::from(caching));
            let needed = UNCOUNTED_BYTES + index_bytes + pages_min * PAGE_BYTES;
            if settings.memory_bytes < needed {
                let budget = settings.memory_bytes;
                return Err(settings.wrong(format!(
                    "{budget} bytes of memory, expected at least {needed}: {index_bytes} for the \
                     index, which holds every key"
                )));
            }
            let pages = (settings.memory_bytes - UNCOUNTED_BYTES - index_bytes) / PAGE_BYTES;
            let cached = (pages as f64 * options.read_cache_share) as u64;
            let cached = if caching { cached.clamp(PAGES_MIN, pages - PAGES_MIN) } else { 0 };
            let log_bytes = (pages - cached) * PAGE_BYTES;
            let read_cache_bytes = cached * PAGE_BYTES;
            // Four pages have to be immutable, whatever the fraction.
            let most = 1.0 - 4.0 / (pages - cached) as f64;
            let place = format!("{}/log/", settings.place.display());
            let doing = || format!("faster: {place}");
            if std::fs::exists(&place).doing(doing)? {
                std::fs::remove_dir_all(&place).doing(doing)?;
            }
            std::fs::create_dir_all(&place).doing(doing)?;
            let place = CString::new(place).doing(|| "faster: place".into())?;
            let mut message = [0; MESSAGE_BYTES];
            // SAFETY: the path ends with zero, the message's capacity is one less than its bytes,
            // so it ends with zero too, and both outlive the call.
            let store = unsafe {
                peers_faster_open(
                    place.as_ptr(),
                    settings.row_words() as u32,
                    buckets,
                    log_bytes,
                    options.mutable_fraction.min(most),
                    read_cache_bytes,
                    message.as_mut_ptr(),
                    MESSAGE_BYTES - 1,
                )
            };
            if store.is_null() {
                // SAFETY: the message ends with zero, as it was all zeros before.
                let text = unsafe { CStr::from_ptr(message.as_ptr()) };
                return Err(settings.wrong(format!("opening: {}", text.to_string_lossy())));
            }
            let words = settings.row_words();
            Ok(Self { store, words, options, buckets, log_bytes, read_cache_bytes })
        }
    }

    impl Engine for Faster {
        fn get_batch(&mut self, keys: &[u64], rows: &mut [f32]) -> Result<()> {
            assert_eq!(keys.len() * self.words, rows.len(), "rows of another batch");
            // SAFETY: the store is open, this is its thread, and `rows` has a row for each key;
            // all requests are complete when the call returns.
            let broken = unsafe {
                peers_faster_get(self.store, keys.as_ptr(), keys.len(), rows.as_mut_ptr())
            };
            complete(broken, "read")
        }

        fn put_batch(&mut self, keys: &[u64], rows: &[f32]) -> Result<()> {
            assert_eq!(keys.len() * self.words, rows.len(), "rows of another batch");
            // SAFETY: as for reading.
            let broken =
                unsafe { peers_faster_put(self.store, keys.as_ptr(), keys.len(), rows.as_ptr()) };
            complete(broken, "written")
        }

        fn figures(&self) -> Figures {
            let mut memory = Map::new();
            memory.insert("index_without_chains".into(), json!(self.buckets * BUCKET_BYTES));
            memory.insert("log_in_memory".into(), json!(self.log_bytes));
            memory.insert("read_cache".into(), json!(self.read_cache_bytes));
            // SAFETY: the store is open and this is its thread.
            let log = unsafe { peers_faster_log_bytes(self.store) };
            let mut settings = serde_json::to_value(&self.options).unwrap_or(Value::Null);
            settings["log_bytes_at_the_end"] = json!(log);
            Figures { memory, settings, ..Figures::default() }
        }
    }

    fn complete(broken: usize, what: &str) -> Result<()> {
        match broken {
            0 => Ok(()),
            _ => Err(Error::new(format!("faster: {broken} rows could not be {what}"))),
        }
    }

    impl Drop for Faster {
        fn drop(&mut self) {
            // SAFETY: the store is open, this is its thread, and nothing uses it afterwards.
            unsafe { peers_faster_close(self.store) };
        }
    }
}
