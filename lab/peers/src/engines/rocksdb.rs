//! RocksDB: a log-structured merge tree with block cache, row cache and memtables of its own.
//!
//! Tuned as its tuning guide says for random reads and overwrites of small rows on flash: direct
//! I/O, so that the budget is the engine's own caches and not the kernel's; no log and no
//! compression; index and filters pinned in the cache; batches as sorted MultiGet over io_uring.
//! A MultiGet reads blocks of one file at a time and at most 32 keys together, so several threads
//! each take a part of the batch. README.md says what else was tried.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rust_rocksdb::event_listener::{CompactionJobInfo, EventListener};
use rust_rocksdb::perf::{PerfMetric, PerfStatsLevel, set_perf_stats, with_thread_local};
use rust_rocksdb::statistics::{StatsLevel, Ticker};
use rust_rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, BlockBasedPinningTier, Cache, CompactOptions, DB,
    DBCompactionStyle, DBCompressionType, DataBlockIndexType, IngestExternalFileOptions,
    MemtableFactory, ReadOptions, SliceTransform, SstFileWriter, UniversalCompactOptions,
    WriteBatch, WriteBufferManager, WriteOptions,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Counts, Engine, Figures, Kind, Merges, Purpose, ReadAhead};
use crate::crew::{Crew, Reader};
use crate::error::{Doing, Result};
use crate::settings::{Mode, Settings};
use crate::sorted::Sorted;
use crate::sys;

pub(super) const KIND: Kind = Kind {
    name: "rocksdb",
    version: || format!("RocksDB {}", env!("ROCKSDB_VERSION")),
    absent: || None,
    defaults: |mode| serde_json::to_value(Options::of(mode)).doing(|| "rocksdb: options".into()),
    open: |settings, purpose| Ok(Box::new(RocksDb::open(settings, purpose)?)),
    keeps_rows: true,
    makes: &["db"],
};

/// Bytes that no cache of RocksDB counts: write batches, blocks of the batch in work, rings, open
/// tables; and the allocator's slack, a share of the budget. Measured as peak memory less caches.
const UNCOUNTED_BYTES: u64 = 22 << 20;
const UNCOUNTED_SHARE: f64 = 0.03;
/// The same for flushes, which sort a memtable, and compactions.
const WRITING_BYTES: u64 = 14 << 20;
/// Bytes that an entry of the row cache takes in truth, for each that the cache counts: measured.
const ROW_CACHE_TRUTH: f64 = 1.25;
/// The smallest memtable that makes sense, and the smallest block cache beside index and filters.
const PART_BYTES_MIN: u64 = 4 << 20;
/// Bytes of an index entry: the last key of a block and where it lies, about.
const INDEX_ENTRY_BYTES: u64 = 20;
const KEY_BYTES: usize = 8;

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Options {
    /// Threads that read parts of a batch.
    threads: usize,
    /// Keys of a part that one thread reads; MultiGet takes 32 at a time.
    piece_keys: usize,
    async_io: bool,
    block_bytes: usize,
    /// No block crosses a page of the device, so that one read of 4 KiB gets it.
    block_align: bool,
    /// A hash index within each data block.
    block_hash: bool,
    /// `lru` or `hyper-clock`.
    block_cache: String,
    /// Share of the caches' memory that holds single rows.
    row_cache_share: f64,
    /// Share of the budget that memtables take at most.
    memtable_share: f64,
    memtables: i32,
    /// Memtables take their memory from the block cache while they grow, and give it back.
    memtables_in_cache: bool,
    /// `skip-list`, or `hash-linked-list`: a hash table of lists, sorted when it is flushed.
    memtable: String,
    /// Overwrite a row that is in the memtable already.
    in_place: bool,
    /// `bloom`, `ribbon` or `none`.
    filter: String,
    filter_bits: f64,
    /// No filters on the last level, which has every key.
    filter_all_but_last: bool,
    two_level_index: bool,
    /// `level` or `universal`.
    compaction: String,
    level0_files: i32,
    background_jobs: i32,
    subcompactions: u32,
    file_bytes: u64,
    checksums: bool,
    direct_reads: bool,
    /// Any options in RocksDB's own notation, applied last.
    more: String,
}

impl Options {
    fn of(mode: Mode) -> Self {
        // Written rows move to another file, of which the row cache has no rows.
        let (row_cache_share, memtable_share) = match mode {
            Mode::Read | Mode::YcsbC => (0.9, 0.0),
            Mode::YcsbB => (0.85, 0.1),
            _ => (0.0, 0.7),
        };
        Self {
            threads: 8,
            piece_keys: 128,
            async_io: true,
            block_bytes: 4096,
            block_align: true,
            block_hash: true,
            block_cache: "lru".into(),
            row_cache_share,
            memtable_share,
            memtables: 2,
            memtables_in_cache: true,
            memtable: "hash-linked-list".into(),
            in_place: true,
            filter: "bloom".into(),
            filter_bits: 10.0,
            filter_all_but_last: true,
            two_level_index: false,
            compaction: "level".into(),
            level0_files: 4,
            background_jobs: 2,
            subcompactions: 1,
            file_bytes: 32 << 20,
            checksums: true,
            direct_reads: true,
            more: String::new(),
        }
    }
}

/// Division of the budget.
#[derive(Debug, PartialEq, Eq)]
struct Division {
    memtables: u64,
    row_cache: u64,
    block_cache: u64,
}

impl Division {
    fn of(settings: &Settings, options: &Options) -> Result<Self> {
        let blocks = settings.data_bytes() / options.block_bytes.max(1) as u64 + 1;
        let filtered = if options.filter_all_but_last { 0.2 } else { 1.0 };
        let filters = (settings.rows as f64 * options.filter_bits / 8.0 * filtered) as u64;
        let metadata = blocks * INDEX_ENTRY_BYTES + filters;
        let writes = u64::from(settings.mode.writes());
        let memtables_min = writes * PART_BYTES_MIN * options.memtables.max(1) as u64;
        let mut budget = settings.memory_bytes;
        let share = (budget as f64 * UNCOUNTED_SHARE) as u64;
        let uncounted = UNCOUNTED_BYTES + share + writes * WRITING_BYTES;
        let needed = uncounted + memtables_min + metadata + PART_BYTES_MIN;
        if settings.mode == Mode::Window {
            // The budget is that of the caches: a few per cent of the rows, as in RecDB's paper,
            // are less than the rest takes.
            budget = (budget + uncounted).max(needed);
        }
        if budget < needed {
            return Err(settings.wrong(format!(
                "{budget} bytes of memory, expected at least {needed}: {metadata} for index and \
                 filters, {memtables_min} for memtables, the rest for its work"
            )));
        }
        let memtables = ((budget as f64 * options.memtable_share) as u64)
            .clamp(memtables_min, budget - needed + memtables_min);
        let apart = if options.memtables_in_cache { 0 } else { memtables };
        let caches = budget - uncounted - apart;
        let row_cache = ((caches as f64 * options.row_cache_share) as u64)
            .min(budget - uncounted - memtables - metadata - PART_BYTES_MIN);
        let block_cache = caches - row_cache;
        let row_cache = (row_cache as f64 / ROW_CACHE_TRUTH) as u64;
        Ok(Self { memtables, row_cache, block_cache })
    }
}

/// RocksDB's own options, and the caches that they use.
struct Tuned {
    options: rust_rocksdb::Options,
    block_cache: Cache,
    row_cache: Option<Cache>,
    merged: Merged,
}

/// Statistics of compactions, reported by RocksDB as each ends.
#[derive(Clone, Default)]
struct Merged(Arc<Mutex<Merges>>);

impl EventListener for Merged {
    fn on_compaction_completed(&self, job: &CompactionJobInfo) {
        // A file that only moves down a level is not read.
        if job.status().is_ok() && job.input_records() > 0 {
            let seconds = job.elapsed_micros() as f64 / 1e6;
            let mut merges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            merges.count += 1;
            merges.seconds += seconds;
            merges.seconds_max = merges.seconds_max.max(seconds);
            merges.rows_in += job.input_records();
            merges.rows_out += job.output_records();
        }
    }
}

fn table(settings: &Settings, options: &Options, cache: &Cache) -> Result<BlockBasedOptions> {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_block_size(options.block_bytes);
    table.set_block_align(options.block_align);
    table.set_format_version(7);
    table.set_cache_index_and_filter_blocks(true);
    table.set_cache_index_and_filter_blocks_with_high_priority(true);
    table.set_top_level_index_pinning_tier(BlockBasedPinningTier::All);
    table.set_partition_pinning_tier(BlockBasedPinningTier::All);
    table.set_unpartitioned_pinning_tier(BlockBasedPinningTier::All);
    table.set_optimize_filters_for_memory(true);
    match options.filter.as_str() {
        "bloom" => table.set_bloom_filter(options.filter_bits, false),
        "ribbon" => table.set_ribbon_filter(options.filter_bits),
        "none" => {}
        other => return Err(settings.wrong(format!("filter {other:?}, expected bloom, ribbon"))),
    }
    if options.two_level_index {
        table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
        table.set_partition_filters(options.filter != "none");
    }
    if options.block_hash {
        table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
        table.set_data_block_hash_ratio(0.75);
    }
    Ok(table)
}

fn tuned(settings: &Settings, options: &Options, purpose: Purpose) -> Result<Tuned> {
    let division = Division::of(settings, options)?;
    let block_cache = match options.block_cache.as_str() {
        "lru" => Cache::new_lru_cache(division.block_cache as usize),
        "hyper-clock" => Cache::new_hyper_clock_cache(division.block_cache as usize, 0),
        other => {
            let what = format!("block_cache {other:?}, expected lru or hyper-clock");
            return Err(settings.wrong(what));
        }
    };
    let row_cache =
        (division.row_cache > 0).then(|| Cache::new_lru_cache(division.row_cache as usize));
    let mut tuned = rust_rocksdb::Options::default();
    tuned.set_block_based_table_factory(&table(settings, options, &block_cache)?);
    if let Some(cache) = &row_cache {
        tuned.set_row_cache(cache);
    }
    tuned.create_if_missing(purpose == Purpose::Load);
    tuned.set_compression_type(DBCompressionType::None);
    tuned.set_use_direct_reads(options.direct_reads);
    tuned.set_use_direct_io_for_flush_and_compaction(true);
    tuned.set_compaction_readahead_size(1 << 20);
    tuned.set_writable_file_max_buffer_size(1 << 20);
    tuned.set_max_open_files(-1);
    tuned.set_optimize_filters_for_hits(options.filter_all_but_last);
    tuned.set_max_background_jobs(options.background_jobs);
    tuned.set_max_subcompactions(options.subcompactions);
    let memtable = (division.memtables / options.memtables.max(1) as u64).max(1 << 20);
    if options.memtables_in_cache {
        let bytes = memtable as usize * options.memtables.max(1) as usize;
        let manager = WriteBufferManager::new_write_buffer_manager_with_cache(
            bytes,
            false,
            block_cache.clone(),
        );
        tuned.set_write_buffer_manager(&manager);
    }
    tuned.set_write_buffer_size(memtable as usize);
    tuned.set_max_write_buffer_number(options.memtables);
    tuned.set_memtable_whole_key_filtering(true);
    tuned.set_memtable_prefix_bloom_ratio(0.02);
    match options.memtable.as_str() {
        // Searches go on where the one for the key before ended; a hash table would be sorted.
        "skip-list" => tuned.set_memtable_batch_lookup_optimization(true),
        "hash-linked-list" => {
            // The lists are those of a prefix, here the whole key.
            tuned.set_prefix_extractor(SliceTransform::create_fixed_prefix(KEY_BYTES));
            let bucket_count = (memtable as usize / settings.row_bytes()).max(1);
            tuned.set_memtable_factory(MemtableFactory::HashLinkList { bucket_count });
            tuned.set_allow_concurrent_memtable_write(false);
        }
        other => {
            let what = format!("memtable {other:?}, expected skip-list or hash-linked-list");
            return Err(settings.wrong(what));
        }
    }
    if options.in_place {
        tuned.set_inplace_update_support(true);
        tuned.set_allow_concurrent_memtable_write(false);
    }
    tuned.set_target_file_size_base(options.file_bytes);
    tuned.set_level_zero_file_num_compaction_trigger(options.level0_files);
    tuned.set_max_bytes_for_level_base(memtable * options.level0_files.max(1) as u64);
    tuned.set_level_compaction_dynamic_level_bytes(true);
    match options.compaction.as_str() {
        "level" => tuned.set_compaction_style(DBCompactionStyle::Level),
        "universal" => {
            tuned.set_compaction_style(DBCompactionStyle::Universal);
            let mut universal = UniversalCompactOptions::default();
            universal.set_max_size_amplification_percent(100);
            tuned.set_universal_compaction_options(&universal);
        }
        other => {
            return Err(settings.wrong(format!("compaction {other:?}, expected level, universal")));
        }
    }
    tuned.set_avoid_flush_during_shutdown(true);
    tuned.set_stats_dump_period_sec(0);
    tuned.set_stats_persist_period_sec(0);
    tuned.enable_statistics();
    tuned.set_statistics_level(StatsLevel::ExceptHistogramOrTimers);
    let merged = Merged::default();
    tuned.add_event_listener(merged.clone());
    if !options.more.is_empty() {
        tuned = tuned.get_options_from_string(&options.more).doing(|| "rocksdb: more".into())?;
    }
    Ok(Tuned { options: tuned, block_cache, row_cache, merged })
}

/// Reads parts of batches.
struct Part {
    db: Arc<DB>,
    options: ReadOptions,
    words: usize,
    keys: Vec<[u8; KEY_BYTES]>,
    /// Blocks that all parts loaded.
    blocks: Arc<AtomicU64>,
}

impl Reader for Part {
    fn read(&mut self, keys: &[u64], rows: &mut [f32]) -> Result<()> {
        let doing = || "rocksdb: reading".into();
        self.keys.clear();
        self.keys.extend(keys.iter().map(|key| key.to_be_bytes()));
        set_perf_stats(PerfStatsLevel::EnableCount);
        // Of this thread: blocks that compactions load do not count.
        let (found, blocks) = with_thread_local(|context| {
            let found = self.db.batched_multi_get_pinned_batch_opt(&self.keys, true, &self.options);
            (found, context.metric(PerfMetric::BlockReadCount))
        });
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
        let found = found.doing(doing)?;
        for (row, value) in rows.chunks_exact_mut(self.words).zip(&found) {
            match value.doing(doing)? {
                Some(bytes) if bytes.len() == 4 * row.len() => {
                    bytemuck::cast_slice_mut(row).copy_from_slice(bytes);
                }
                _ => row.fill(f32::NAN),
            }
        }
        Ok(())
    }
}

/// Readers beside the store.
struct Ahead {
    crew: Crew<Part>,
    words: usize,
    piece_keys: usize,
}

impl ReadAhead for Ahead {
    fn piece_keys(&self) -> usize {
        self.piece_keys
    }

    fn read(&mut self, sorted: &Sorted, rows: &mut [f32]) -> Result<()> {
        self.crew.get(sorted, self.words, rows)
    }
}

struct RocksDb {
    crew: Crew<Part>,
    blocks: Arc<AtomicU64>,
    db: Arc<DB>,
    tuned: Tuned,
    options: Options,
    purpose: Purpose,
    settings: Settings,
    words: usize,
    sorted: Sorted,
    batch: WriteBatch,
    write: WriteOptions,
    files: usize,
}

fn crew(
    db: &Arc<DB>,
    options: &Options,
    words: usize,
    blocks: &Arc<AtomicU64>,
) -> Result<Crew<Part>> {
    let parts = (0..options.threads).map(|_| {
        let mut read = ReadOptions::default();
        read.set_async_io(options.async_io);
        read.set_verify_checksums(options.checksums);
        let (db, blocks) = (Arc::clone(db), Arc::clone(blocks));
        Part { db, options: read, words, keys: vec![], blocks }
    });
    Crew::new(parts.collect(), options.piece_keys)
}

impl RocksDb {
    fn open(settings: &Settings, purpose: Purpose) -> Result<Self> {
        let options: Options = settings.options(Options::of(settings.mode))?;
        let tuned = tuned(settings, &options, purpose)?;
        let path = settings.place.join("db");
        let doing = || format!("rocksdb: {}", path.display());
        let db = Arc::new(DB::open(&tuned.options, &path).doing(doing)?);
        let blocks = Arc::default();
        let crew = crew(&db, &options, settings.row_words(), &blocks)?;
        let mut write = WriteOptions::default();
        write.disable_wal(true);
        write.set_memtable_insert_hint_per_batch(true);
        Ok(Self {
            crew,
            blocks,
            db,
            tuned,
            options,
            purpose,
            settings: settings.clone(),
            words: settings.row_words(),
            sorted: Sorted::default(),
            batch: WriteBatch::default(),
            write,
            files: 0,
        })
    }

    /// Loads rows in order as one table file of the last level.
    fn ingest(&mut self, keys: &[u64], rows: &[f32]) -> Result<()> {
        let doing = || "rocksdb: loading".into();
        let path = self.settings.place.join(format!("load-{}.sst", self.files));
        self.files += 1;
        let mut file = SstFileWriter::create(&self.tuned.options);
        file.open(&path).doing(doing)?;
        for (key, row) in keys.iter().zip(rows.chunks_exact(self.words)) {
            file.put(key.to_be_bytes(), bytemuck::cast_slice::<f32, u8>(row)).doing(doing)?;
        }
        file.finish().doing(doing)?;
        let mut how = IngestExternalFileOptions::default();
        how.set_move_files(true);
        self.db.ingest_external_file_opts(&how, vec![path]).doing(doing)
    }

    fn number(&self, property: &str) -> u64 {
        self.db.property_int_value(property).ok().flatten().unwrap_or(0)
    }
}

impl Engine for RocksDb {
    fn get_batch(&mut self, keys: &[u64], rows: &mut [f32]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        self.sorted.set(keys);
        self.crew.get(&self.sorted, self.words, rows)
    }

    fn put_batch(&mut self, keys: &[u64], rows: &[f32]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        if self.purpose == Purpose::Load {
            return self.ingest(keys, rows);
        }
        self.sorted.set(keys);
        self.batch.clear();
        for (key, row) in self.sorted.rows(self.words, rows) {
            self.batch.put(key.to_be_bytes(), bytemuck::cast_slice::<f32, u8>(row));
        }
        self.db.write_opt(&self.batch, &self.write).doing(|| "rocksdb: writing".into())
    }

    fn finish_load(&mut self) -> Result<()> {
        let how = CompactOptions::default();
        self.db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &how);
        Ok(())
    }

    fn figures(&self) -> Figures {
        let tickers = &self.tuned.options;
        let mut memory = Map::new();
        let mut note = |name: &str, bytes: u64| memory.insert(name.into(), json!(bytes));
        note("memtables", self.number("rocksdb.size-all-mem-tables"));
        note("table_readers", self.number("rocksdb.estimate-table-readers-mem"));
        note("block_cache", self.tuned.block_cache.get_usage() as u64);
        note("block_cache_pinned", self.tuned.block_cache.get_pinned_usage() as u64);
        let row_cache = self.tuned.row_cache.as_ref().map_or(0, Cache::get_usage);
        note("row_cache", row_cache as u64);
        let misses = tickers.get_ticker_count(Ticker::BlockCacheDataMiss);
        let hits = [Ticker::MemtableHit, Ticker::RowCacheHit, Ticker::BlockCacheDataHit];
        let hits = hits.map(|ticker| tickers.get_ticker_count(ticker)).iter().sum();
        Figures {
            memory,
            hits: Some((hits, misses)),
            read_requests: None,
            settings: serde_json::to_value(&self.options).unwrap_or(Value::Null),
        }
    }

    fn read_ahead(&self) -> Result<Option<Box<dyn ReadAhead>>> {
        let crew = crew(&self.db, &self.options, self.words, &self.blocks)?;
        let alone = self.options.threads <= 1;
        let piece_keys = if alone { usize::MAX } else { self.options.piece_keys };
        Ok(Some(Box::new(Ahead { crew, words: self.words, piece_keys })))
    }

    fn counts(&self) -> Result<Counts> {
        let ticker = |ticker| self.tuned.options.get_ticker_count(ticker);
        Ok(Counts {
            blocks_read: self.blocks.load(Ordering::Relaxed),
            flushed_bytes: ticker(Ticker::FlushWriteBytes),
            compact_read_bytes: ticker(Ticker::CompactReadBytes),
            compact_written_bytes: ticker(Ticker::CompactWriteBytes),
            stall_us: ticker(Ticker::StallMicros),
            merges: *self.tuned.merged.0.lock().unwrap_or_else(PoisonError::into_inner),
            disk_bytes: sys::disk_bytes(&self.settings.place)?,
        })
    }
}
