//! `/status.json`: what the page shows. `docs/how-to/server.md` has every field.

use super::history::Columns;
use crate::commands::COMMANDS;
use crate::shared::Shared;
use crate::timer::Done;
use crate::tls::Tls;
use embedrock_core::io::{DeviceCurve, IoKind};
use embedrock_core::store::{MemoryUse, WrittenBytes};
use embedrock_core::{Stats, TableInfo, Uncommitted};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Version of this document: one more when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// All of it.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    version: u32,
    server: Server,
    /// Why the server does not do all that it should.
    problem: Option<String>,
    /// A warning for the operator: that the certificate is about to expire.
    warning: Option<String>,
    connections: Connections,
    requests: Requests,
    rows: Rows,
    last_task: Option<Done>,
    /// Of the sample before; absent until there is one.
    store: Option<StoreNow<'a>>,
    history: Columns,
}

#[derive(Serialize)]
struct Server {
    embedrock_version: &'static str,
    address: String,
    tls: bool,
    writable: bool,
    /// Whether it stays at its commit, instead of following the newest.
    pinned: bool,
    threads: usize,
    /// The modes in which rows are sent: the user's choice, and those in use.
    gather: &'static str,
    gather_modes: String,
    /// The expiry of the certificate, if there is one that has a date.
    certificate_end_unix_s: Option<i64>,
    process_id: u32,
    uptime_s: f64,
}

#[derive(Serialize)]
struct Connections {
    open: usize,
    max: usize,
    accepted: u64,
    rejected: u64,
    malformed: u64,
    timed_out: u64,
    overflowed: u64,
    wrong_passwords: u64,
    /// Requests and replies in memory, and the bound of it.
    memory_bytes: usize,
    memory_bytes_max: usize,
}

#[derive(Serialize)]
struct Requests {
    all: u64,
    errors: u64,
    received_bytes: u64,
    sent_bytes: u64,
    /// Counts of the commands that came at least once.
    by_command: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct Rows {
    read: u64,
    missing: u64,
    put: u64,
    updated: u64,
    promoted: u64,
}

#[derive(Serialize)]
struct StoreNow<'a> {
    name: String,
    path: &'a str,
    /// The time of this look.
    unix_s: f64,
    commit: Option<Commit>,
    uncommitted: Uncommitted,
    hits: u64,
    rescued: u64,
    misses: u64,
    budget_bytes: u64,
    memory: MemoryUse,
    disk: Disk<'a>,
    written: WrittenBytes,
    device: Device<'a>,
    tables: Vec<Table<'a>>,
}

#[derive(Serialize)]
struct Commit {
    step: u64,
    sequence: u64,
    unix_s: u64,
}

#[derive(Serialize)]
struct Disk<'a> {
    all_bytes: u64,
    max_bytes: Option<u64>,
    cold_directory: Option<&'a str>,
    parts: Vec<DiskPart<'a>>,
    /// The journal, what commits keep beside rows, and small files.
    other_bytes: u64,
}

/// The files of rows of one size, of one storage.
#[derive(Serialize)]
struct DiskPart<'a> {
    class: u16,
    storage: &'static str,
    row_bytes: usize,
    tables: Vec<&'a str>,
    bytes: u64,
}

#[derive(Serialize)]
struct Device<'a> {
    io: IoKind,
    direct: bool,
    curve: Option<&'a DeviceCurve>,
    notes: &'a [String],
    reads: u64,
    read_bytes: u64,
    written_bytes: u64,
}

#[derive(Serialize)]
struct Table<'a> {
    name: &'a str,
    storage: &'static str,
    dtype: &'static str,
    embedding_dim: usize,
    num_embeddings: Option<u64>,
    rows: u64,
    row_bytes: usize,
    optimizer: &'static str,
}

/// The last sample of the store.
pub(super) struct Seen {
    pub(super) unix_s: f64,
    pub(super) stats: Stats,
    pub(super) commit_unix_s: u64,
    pub(super) uncommitted: Uncommitted,
}

impl<'a> Document<'a> {
    /// The document of now, but for what was seen of the store with the newest sample.
    pub(super) fn new(
        shared: &Shared,
        seen: Option<&'a Seen>,
        problem: Option<String>,
        history: Columns,
    ) -> Self {
        let (options, metrics) = (&shared.options, &shared.metrics);
        let validity = shared.tls.as_ref().and_then(Tls::validity);
        let by_command = COMMANDS.iter().zip(&metrics.commands);
        let by_command = by_command.map(|(command, counter)| (command.name, counter.get()));
        Self {
            version: VERSION,
            server: Server {
                embedrock_version: env!("CARGO_PKG_VERSION"),
                address: shared.address.to_string(),
                tls: options.tls.is_some(),
                writable: shared.is_writable(),
                pinned: shared.is_pinned.load(Ordering::Relaxed),
                threads: options.threads,
                gather: options.gather.name(),
                gather_modes: shared.plan.to_string(),
                certificate_end_unix_s: validity.map(|validity| validity.end_unix_s),
                process_id: std::process::id(),
                uptime_s: shared.begun.elapsed().as_secs_f64(),
            },
            problem,
            warning: shared.warning(),
            connections: Connections {
                open: shared.clients.open(),
                max: options.max_connections,
                accepted: metrics.accepted.get(),
                rejected: metrics.rejected.get(),
                malformed: metrics.malformed.get(),
                timed_out: metrics.timed_out.get(),
                overflowed: metrics.overflowed.get(),
                wrong_passwords: metrics.wrong_passwords.get(),
                memory_bytes: shared.clients.bytes(),
                memory_bytes_max: shared.clients.bytes_max(),
            },
            requests: Requests {
                all: metrics.requests(),
                errors: metrics.refused.get(),
                received_bytes: metrics.bytes_in.get(),
                sent_bytes: metrics.bytes_out.get(),
                by_command: by_command.filter(|(_, count)| *count > 0).collect(),
            },
            rows: Rows {
                read: metrics.rows_read.get(),
                missing: metrics.rows_missing.get(),
                put: metrics.rows_put.get(),
                updated: metrics.rows_updated.get(),
                promoted: metrics.rows_promoted.get(),
            },
            last_task: shared.last_task.lock().clone(),
            store: seen.map(StoreNow::new),
            history,
        }
    }
}

impl<'a> StoreNow<'a> {
    fn new(seen: &'a Seen) -> Self {
        let stats = &seen.stats;
        let commit = (stats.commits.sequence > 0).then_some(Commit {
            step: stats.commits.step,
            sequence: stats.commits.sequence,
            unix_s: seen.commit_unix_s,
        });
        let name = Path::new(&stats.path).file_name();
        Self {
            name: name.map_or_else(|| stats.path.clone(), |n| n.to_string_lossy().into_owned()),
            path: &stats.path,
            unix_s: seen.unix_s,
            commit,
            uncommitted: seen.uncommitted,
            hits: stats.hits,
            rescued: stats.rescued,
            misses: stats.misses,
            budget_bytes: stats.budget_bytes,
            memory: stats.memory,
            disk: Disk::new(stats),
            written: stats.written,
            device: Device {
                io: stats.device.io,
                direct: stats.device.direct,
                curve: stats.device.curve.as_ref(),
                notes: &stats.device.notes,
                reads: stats.read_requests,
                read_bytes: stats.bytes_read,
                written_bytes: stats.bytes_written,
            },
            tables: stats.tables.iter().map(Table::new).collect(),
        }
    }
}

impl<'a> Disk<'a> {
    fn new(stats: &'a Stats) -> Self {
        let parts: Vec<DiskPart<'_>> = stats
            .classes
            .iter()
            .map(|class| DiskPart {
                class: class.id,
                storage: class.storage.name(),
                row_bytes: class.row_bytes,
                tables: stats
                    .tables
                    .iter()
                    .filter(|t| (t.row_bytes, t.spec.storage) == (class.row_bytes, class.storage))
                    .map(|table| table.spec.name.as_str())
                    .collect(),
                bytes: class.disk_bytes,
            })
            .collect();
        let of_rows: u64 = parts.iter().map(|part| part.bytes).sum();
        Self {
            all_bytes: stats.disk_bytes,
            max_bytes: stats.max_disk_bytes,
            cold_directory: stats.cold_directory.as_deref(),
            other_bytes: stats.disk_bytes.saturating_sub(of_rows),
            parts,
        }
    }
}

impl<'a> Table<'a> {
    fn new(table: &'a TableInfo) -> Self {
        let spec = &table.spec;
        Self {
            name: &spec.name,
            storage: spec.storage.name(),
            dtype: spec.dtype.name(),
            embedding_dim: spec.embedding_dim,
            num_embeddings: spec.num_embeddings,
            rows: table.rows,
            row_bytes: table.row_bytes,
            optimizer: spec.optimizer.kind.name(),
        }
    }
}
