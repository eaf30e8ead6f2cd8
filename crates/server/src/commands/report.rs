//! `INFO`: the state and the counters of a server, by the names that Redis has for them.
//!
//! Monitors, balancers and clients look for fields by name. A field for something that Redis has
//! and a store has not gets the value that is true here (no replicas, no expired keys), or is left
//! out if there is none. `docs/how-to/server.md` explains the less obvious ones.

use super::{Call, Outcome};
use crate::refusal::Refusal;
use crate::shared::Shared;
use embedrock_core::{Result, Stats};
use std::cell::OnceCell;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

/// The version of Redis whose protocol and commands these are, as far as they go.
const REDIS_VERSION: &str = "7.0.0";
/// Ticks of a second in `/proc`, on every machine that Linux runs on here.
const TICKS: f64 = 100.0;

/// The value of a field.
type Value = String;
/// A section: its name, and what its fields are.
type Section = (&'static str, fn(&Facts<'_>) -> Result<Vec<(&'static str, Value)>>);

const SECTIONS: [Section; 11] = [
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Replication", replication),
    ("CPU", cpu),
    ("Gather", gather),
    ("Cluster", cluster),
    ("Store", store),
    ("Keyspace", keyspace),
];

/// The sources of the sections. The store is asked only if a section needs it: a client that asks
/// each second whether this is the primary waits for no writer.
struct Facts<'a> {
    shared: &'a Shared,
    is_in_cluster: bool,
    stats: OnceCell<Stats>,
}

impl Facts<'_> {
    fn stats(&self) -> Result<&Stats> {
        if let Some(stats) = self.stats.get() {
            return Ok(stats);
        }
        let stats = self.shared.store.stats()?;
        Ok(self.stats.get_or_init(|| stats))
    }
}

/// `INFO [section ...]`
pub(super) fn info(call: &mut Call<'_>) -> Outcome {
    let text = text_of(call)?;
    call.reply(|writer| writer.bulk(text.as_bytes()));
    Ok(())
}

fn text_of(call: &Call<'_>) -> std::result::Result<String, Refusal> {
    let is_in_cluster = call.cluster.is_some();
    let facts = Facts { shared: call.shared, is_in_cluster, stats: OnceCell::new() };
    let is_wanted = |section: &str| {
        let mut asked = call.arguments.from(1);
        let all = [section, "all", "everything", "default"];
        let is_one = |name: &[u8]| all.iter().any(|s| name.eq_ignore_ascii_case(s.as_bytes()));
        asked.len() == 0 || asked.any(is_one)
    };
    let mut text = String::new();
    for (name, fields) in SECTIONS.iter().filter(|(name, _)| is_wanted(name)) {
        let _ = write!(text, "# {name}\r\n");
        for (key, value) in fields(&facts)? {
            let _ = write!(text, "{key}:{value}\r\n");
        }
        text.push_str("\r\n");
    }
    Ok(text)
}

fn server(facts: &Facts<'_>) -> Result<Vec<(&'static str, Value)>> {
    let shared = facts.shared;
    let uptime = shared.begun.elapsed().as_secs();
    let mode = if facts.is_in_cluster { "cluster" } else { "standalone" };
    Ok(vec![
        ("redis_version", REDIS_VERSION.to_owned()),
        ("redis_mode", mode.to_owned()),
        ("embedrock_version", env!("CARGO_PKG_VERSION").to_owned()),
        ("os", std::env::consts::OS.to_owned()),
        ("arch_bits", usize::BITS.to_string()),
        ("process_id", std::process::id().to_string()),
        ("run_id", shared.run_id.clone()),
        ("tcp_port", shared.address.port().to_string()),
        ("uptime_in_seconds", uptime.to_string()),
        ("uptime_in_days", (uptime / 86_400).to_string()),
        ("threads", shared.options.threads.to_string()),
        ("writable", u8::from(shared.is_writable()).to_string()),
        ("last_timer_failure", one_line(shared.timer_failure.lock().as_deref())),
        ("warning", one_line(shared.warning().as_deref())),
    ])
}

fn clients(facts: &Facts<'_>) -> Result<Vec<(&'static str, Value)>> {
    let shared = facts.shared;
    Ok(vec![
        ("connected_clients", shared.clients.open().to_string()),
        ("maxclients", shared.options.max_connections.to_string()),
        ("blocked_clients", shared.blocked.load(Ordering::Relaxed).to_string()),
    ])
}

fn memory(facts: &Facts<'_>) -> Result<Vec<(&'static str, Value)>> {
    let (stats, clients) = (facts.stats()?, &facts.shared.clients);
    let mut fields = vec![
        ("used_memory", stats.memory.total().to_string()),
        ("used_memory_human", human(stats.memory.total())),
    ];
    if let Some(bytes) = resident_bytes() {
        fields.push(("used_memory_rss", bytes.to_string()));
        fields.push(("used_memory_rss_human", human(bytes)));
    }
    fields.extend([
        ("maxmemory", stats.budget_bytes.to_string()),
        ("maxmemory_human", human(stats.budget_bytes)),
        ("maxmemory_policy", "noeviction".to_owned()),
        ("mem_clients_normal", clients.bytes().to_string()),
        ("maxmemory_clients", clients.bytes_max().to_string()),
        ("budget_bytes", stats.budget_bytes.to_string()),
        ("index_bytes", stats.memory.index_bytes.to_string()),
    ]);
    Ok(fields)
}

fn persistence(facts: &Facts<'_>) -> Result<Vec<(&'static str, Value)>> {
    let shared = facts.shared;
    let last = shared.store.last_commit().map_or(0, |commit| commit.unix_time);
    let is_well = shared.problem().is_none();
    Ok(vec![
        ("loading", "0".to_owned()),
        ("async_loading", "0".to_owned()),
        ("rdb_changes_since_last_save", shared.store.uncommitted().rows.to_string()),
        ("rdb_bgsave_in_progress", "0".to_owned()),
        ("rdb_last_save_time", last.to_string()),
        ("rdb_last_bgsave_status", if is_well { "ok" } else { "err" }.to_owned()),
        ("aof_enabled", "0".to_owned()),
    ])
}

fn stats(facts: &Facts<'_>) -> Result<Vec<(&'static str, Value)>> {
    let (metrics, stats) = (&facts.shared.metrics, facts.stats()?);
    let now = facts.shared.rates.now();
    let kilobytes = |bytes: f64| format!("{:.2}", bytes / 1024.0);
    Ok(vec![
        ("total_connections_received", metrics.accepted.get().to_string()),
        ("total_commands_processed", metrics.requests().to_string()),
        ("instantaneous_ops_per_sec", format!("{:.0}", now.requests)),
        ("total_net_input_bytes", metrics.bytes_in.get().to_string()),
        ("total_net_output_bytes", metrics.bytes_out.get().to_string()),
        ("instantaneous_input_kbps", kilobytes(now.received_bytes)),
        ("instantaneous_output_kbps", kilobytes(now.sent_bytes)),
        ("rejected_connections", metrics.rejected.get().to_string()),
        ("expired_keys", "0".to_owned()),
        ("evicted_keys", "0".to_owned()),
        ("total_error_replies", metrics.refused.get().to_string()),
        ("rows_read", metrics.rows_read.get().to_string()),
        ("rows_missing", metrics.rows_missing.get().to_string()),
        ("rows_put", metrics.rows_put.get().to_string()),
        ("rows_updated", metrics.rows_updated.get().to_string()),
        ("keyspace_hits", metrics.keys_found.get().to_string()),
        ("keyspace_misses", metrics.rows_missing.get().to_string()),
        ("cache_hits", stats.hits.to_string()),
        ("cache_misses", stats.misses.to_string()),
        ("cache_hit_rate", format!("{:.4}", stats.hit_rate)),
    ])
}

/// Every server is the primary of its keys: clients that look for one, to read or to write, find
/// it. One that only reads refuses writes by itself.
fn replication(facts: &Facts<'_>) -> Result<Vec<(&'static str, Value)>> {
    Ok(vec![
        ("role", "master".to_owned()),
        ("connected_slaves", "0".to_owned()),
        ("master_failover_state", "no-failover".to_owned()),
        ("master_replid", facts.shared.run_id.clone()),
        ("master_repl_offset", "0".to_owned()),
        ("repl_backlog_active", "0".to_owned()),
    ])
}

fn cpu(_: &Facts<'_>) -> Result<Vec<(&'static str, Value)>> {
    let seconds = |ticks: f64| format!("{:.6}", ticks / TICKS);
    Ok(processor_ticks().map_or_else(Vec::new, |(user, system)| {
        vec![("used_cpu_sys", seconds(system)), ("used_cpu_user", seconds(user))]
    }))
}

fn gather(facts: &Facts<'_>) -> Result<Vec<(&'static str, Value)>> {
    let (shared, metrics) = (facts.shared, &facts.shared.metrics);
    Ok(vec![
        ("gather", shared.options.gather.name().to_owned()),
        ("gather_modes", shared.plan.to_string()),
        ("lent_pulls", metrics.lent_pulls.get().to_string()),
        ("zero_copy_sends", metrics.zero_copy_sends.get().to_string()),
        ("zero_copy_copied", metrics.zero_copy_copied.get().to_string()),
    ])
}

fn cluster(facts: &Facts<'_>) -> Result<Vec<(&'static str, Value)>> {
    Ok(vec![("cluster_enabled", u8::from(facts.is_in_cluster).to_string())])
}

fn store(facts: &Facts<'_>) -> Result<Vec<(&'static str, Value)>> {
    let stats = facts.stats()?;
    let is_pinned = facts.shared.is_pinned.load(Ordering::Relaxed);
    Ok(vec![
        ("path", one_line(Some(&stats.path))),
        ("commit_step", stats.commits.step.to_string()),
        ("commit_sequence", stats.commits.sequence.to_string()),
        ("pinned", u8::from(is_pinned).to_string()),
        ("tables", stats.tables.len().to_string()),
        ("disk_bytes", stats.disk_bytes.to_string()),
    ])
}

/// The rows of all tables are the keys of the one database.
fn keyspace(facts: &Facts<'_>) -> Result<Vec<(&'static str, Value)>> {
    let rows: u64 = facts.stats()?.tables.iter().map(|table| table.rows).sum();
    Ok(match rows {
        0 => Vec::new(),
        rows => vec![("db0", format!("keys={rows},expires=0,avg_ttl=0"))],
    })
}

/// A text as the value of a line.
fn one_line(text: Option<&str>) -> String {
    text.unwrap_or_default().replace(['\r', '\n'], " ")
}

/// Bytes as Redis writes them for people.
fn human(bytes: u64) -> String {
    let (mut value, mut at) = (bytes as f64, 0);
    while value >= 1024.0 && at < 3 {
        (value, at) = (value / 1024.0, at + 1);
    }
    match ["B", "K", "M", "G"][at] {
        "B" => format!("{bytes}B"),
        unit => format!("{value:.2}{unit}"),
    }
}

/// Memory of the process that is resident, where the system tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

/// Ticks of the processor in this process and in the system for it, where the system tells.
fn processor_ticks() -> Option<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program is in brackets, and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse().ok();
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people_are_those_of_redis() {
        let sizes = [0, 1023, 1536, 16 << 20, 5 << 40];
        assert_eq!(sizes.map(human), ["0B", "1023B", "1.50K", "16.00M", "5120.00G"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_process_has_memory_and_has_taken_time() {
        assert!(resident_bytes().unwrap() > 1 << 20);
        let (user, system) = processor_ticks().unwrap();
        assert!(user >= 0.0 && system >= 0.0 && user + system < 1e9);
    }
}
