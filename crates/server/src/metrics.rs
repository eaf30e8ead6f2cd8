//! The server's counters, and their form for Prometheus.

use crate::commands::COMMANDS;
use crate::latency::Latency;
use crate::shared::Shared;
use crate::tls::Tls;
use embedrock_core::Stats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::Arc;

/// The server's counters. Relaxed: counters order nothing.
pub(crate) struct Metrics {
    registry: Registry,
    /// Requests by command, in the order of `COMMANDS`.
    pub(crate) commands: Vec<Counter>,
    /// Error replies.
    pub(crate) refused: Counter,
    /// Connections.
    pub(crate) accepted: Counter,
    pub(crate) rejected: Counter,
    pub(crate) malformed: Counter,
    pub(crate) timed_out: Counter,
    pub(crate) overflowed: Counter,
    pub(crate) wrong_passwords: Counter,
    pub(crate) bytes_in: Counter,
    pub(crate) bytes_out: Counter,
    pub(crate) lent_pulls: Counter,
    pub(crate) zero_copy_sends: Counter,
    pub(crate) zero_copy_copied: Counter,
    /// Rows.
    pub(crate) rows_read: Counter,
    pub(crate) rows_missing: Counter,
    /// Keys that were read and had a row: `keyspace_hits` of `INFO`.
    pub(crate) keys_found: Counter,
    pub(crate) rows_put: Counter,
    pub(crate) rows_updated: Counter,
    pub(crate) rows_promoted: Counter,
    pub(crate) commits: Counter,
    pub(crate) refreshes: Counter,
    pub(crate) failed_tasks: Counter,
    pub(crate) hot_failures: Counter,
    pub(crate) turn_seconds: Histogram,
    /// Requests, by the time of the turn that took them.
    pub(crate) latency: Latency,
}

impl Metrics {
    /// All at zero.
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("embedrock");
        let by_command = Family::<Vec<(&'static str, String)>, Counter>::default();
        registry.register("commands", "Requests by command", by_command.clone());
        let counter_of = |name: &str| {
            let labels = vec![("command", name.to_ascii_lowercase())];
            by_command.get_or_create(&labels).clone()
        };
        let commands = COMMANDS.iter().map(|command| counter_of(command.name)).collect();
        let turn_seconds = Histogram::new(exponential_buckets(10e-6, 2.0, 18));
        registry.register(
            "turn_seconds",
            "Time of one turn of a thread: requests taken, rows read, replies sent",
            turn_seconds.clone(),
        );
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        Self {
            commands,
            turn_seconds,
            latency: Latency::new(),
            keys_found: Counter::default(),
            refused: counter("error_replies", "Replies that are errors"),
            accepted: counter("connections_accepted", "Connections that were accepted"),
            rejected: counter("connections_rejected", "Connections beyond the limit"),
            malformed: counter("requests_malformed", "Connections closed by a protocol error"),
            timed_out: counter("connections_timed_out", "Connections closed because of silence"),
            overflowed: counter(
                "connections_overflowed",
                "Connections closed because all replies that waited took too much memory",
            ),
            wrong_passwords: counter("wrong_passwords", "Wrong passwords"),
            bytes_in: counter("received_bytes", "Bytes of requests"),
            bytes_out: counter("sent_bytes", "Bytes of replies"),
            lent_pulls: counter("lent_pulls", "Pulls whose rows were sent from where they lie"),
            zero_copy_sends: counter("zero_copy_sends", "Sends that were to go without a copy"),
            zero_copy_copied: counter(
                "zero_copy_copied",
                "Those of them that the kernel has copied nevertheless, as it does over loopback",
            ),
            rows_read: counter("rows_read", "Rows that were asked for"),
            rows_missing: counter("rows_missing", "Rows that were asked for and never written"),
            rows_put: counter("rows_put", "Rows that were put"),
            rows_updated: counter("rows_updated", "Rows that were updated with gradients"),
            rows_promoted: counter("rows_promoted", "Rows that hot sets have made fast"),
            commits: counter("commits", "Commits that this server made"),
            refreshes: counter("refreshes", "Moves to another commit"),
            hot_failures: counter("hot_failures", "Hot sets whose rows could not be read"),
            failed_tasks: counter("timer_failures", "Commits and refreshes on a timer that failed"),
            registry,
        }
    }

    /// Requests of all commands.
    pub(crate) fn requests(&self) -> u64 {
        self.commands.iter().map(Counter::get).sum()
    }

    /// All counters, and those of the store, as Prometheus reads them: in the text format of
    /// OpenMetrics.
    ///
    /// *Errors*: those of the store's statistics, as text.
    pub(crate) fn encode(&self, shared: &Arc<Shared>) -> Result<String, String> {
        let stats = shared.store.stats().map_err(|error| error.message().to_owned())?;
        let mut store = Registry::with_prefix("embedrock");
        let certificate = shared.tls.as_ref().and_then(Tls::validity);
        store.register_collector(Box::new(StoreCollector {
            stats,
            connections: shared.clients.open(),
            client_bytes: shared.clients.bytes(),
            certificate_end_s: certificate.map(|certificate| certificate.end_unix_s),
        }));
        let mut text = String::new();
        prometheus_client::encoding::text::encode_registry(&mut text, &self.registry)
            .and_then(|()| prometheus_client::encoding::text::encode(&mut text, &store))
            .map_err(|error| error.to_string())?;
        Ok(text)
    }
}

/// The store's statistics of a moment.
#[derive(Debug)]
struct StoreCollector {
    stats: Stats,
    connections: usize,
    client_bytes: usize,
    certificate_end_s: Option<i64>,
}

impl Collector for StoreCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stats = &self.stats;
        for (name, help, value) in [
            ("store_hits", "Rows that were in memory", stats.hits),
            ("store_misses", "Rows that had to be read", stats.misses),
            ("store_first_touches", "Rows that were never written", stats.first_touches),
            ("store_read_requests", "Reads of the device", stats.read_requests),
            ("store_read_bytes", "Bytes read from the device", stats.bytes_read),
            ("store_written_bytes", "Bytes written to the device", stats.bytes_written),
        ] {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        let rows: u64 = stats.tables.iter().map(|table| table.rows).sum();
        let certificate = self.certificate_end_s.map(|end| {
            let help = "When the certificate of the server expires, in seconds since 1970";
            ("certificate_expiry_timestamp_seconds", help, end as f64)
        });
        let gauges = [
            ("connections", "Connections that are open", self.connections as f64),
            ("store_hit_rate", "Hits among hits and misses", stats.hit_rate),
            ("store_rows", "Rows that are written, of all tables", rows as f64),
            ("store_memory_bytes", "Memory of the store", stats.memory.total() as f64),
            ("store_budget_bytes", "Its memory budget", stats.budget_bytes as f64),
            ("store_disk_bytes", "Its bytes on disk", stats.disk_bytes as f64),
            ("store_commit_step", "Step of its newest commit", stats.commits.step as f64),
            ("client_memory_bytes", "Requests and replies in memory", self.client_bytes as f64),
        ];
        for (name, help, value) in gauges.into_iter().chain(certificate) {
            let gauge = ConstGauge::new(value);
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        Ok(())
    }
}
