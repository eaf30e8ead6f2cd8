//! The server for Python: started with an open store, stopped detached from the interpreter.

use crate::error::OrRaise;
use crate::logs::CallEngine;
use crate::store::Store;
use embedrock_server as server;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

/// A store that clients reach over the Redis protocol.
#[pyclass(frozen, module = "embedrock._core")]
pub(crate) struct Server(server::Server);

#[pymethods]
impl Server {
    /// Serves an open store at `listen`. Times are in seconds; 0 is never. `cluster` is the path of
    /// a map, and the id of this server's node in it; `buckets` are those that the store was made
    /// with, where it has not all, and whether it has changed since.
    #[new]
    #[pyo3(signature = (store, listen, *, threads=None, password=None, tls=None, metrics=None,
        cluster=None, max_connections=10_000, idle=3600.0, stall=60.0, max_request_bytes=67_108_864,
        max_keys=1_048_576, max_reply_bytes=67_108_864, client_memory=None, tcp_keepalive=300.0,
        commit_every=60.0, refresh_every=5.0, gather="auto", buckets=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python constructor")]
    fn new(
        py: Python<'_>,
        store: PyRef<'_, Store>,
        listen: String,
        threads: Option<usize>,
        password: Option<String>,
        tls: Option<(PathBuf, PathBuf)>,
        metrics: Option<String>,
        cluster: Option<(PathBuf, Option<String>)>,
        max_connections: usize,
        idle: f64,
        stall: f64,
        max_request_bytes: usize,
        max_keys: usize,
        max_reply_bytes: usize,
        client_memory: Option<usize>,
        tcp_keepalive: f64,
        commit_every: f64,
        refresh_every: f64,
        gather: &str,
        buckets: Option<(String, bool)>,
    ) -> PyResult<Self> {
        let usual = server::Options::new(listen);
        let gather = server::gather::Gather::of_name(gather).or_raise(py)?;
        let (buckets, has_changed) = buckets.unzip();
        let buckets = buckets.map(|text| text.parse()).transpose().or_raise(py)?;
        let has_changed = has_changed.unwrap_or(false);
        let options = server::Options {
            threads: threads.unwrap_or(usual.threads),
            password,
            tls: tls.map(|(certificate, key)| server::TlsFiles { certificate, key }),
            metrics,
            cluster: cluster.map(|(map, node)| server::ClusterOptions {
                map,
                node,
                buckets,
                has_changed,
            }),
            max_connections,
            idle: seconds(idle),
            stall: seconds(stall).unwrap_or(Duration::MAX),
            max_request_bytes,
            max_keys,
            max_reply_bytes,
            client_memory,
            tcp_keepalive: seconds(tcp_keepalive),
            commit_every: seconds(commit_every),
            refresh_every: seconds(refresh_every),
            gather,
            ..usual
        };
        let store = store.core().clone();
        py.call_engine(|| server::Server::start(store, options)).map(Self).or_raise(py)
    }

    /// The address at which clients reach it, as HOST:PORT.
    fn address(&self) -> String {
        self.0.address().to_string()
    }

    /// The address of its metrics, as HOST:PORT, if it has one.
    fn metrics_address(&self) -> Option<String> {
        self.0.metrics_address().map(|address| address.to_string())
    }

    /// The mode in which rows are sent, or one for each row size that was measured.
    fn gather(&self) -> String {
        self.0.gather()
    }

    /// Reads the map of its cluster again, and returns the number of maps so far.
    fn reload_map(&self, py: Python<'_>) -> PyResult<u64> {
        py.call_engine(|| self.0.reload_map()).or_raise(py)
    }

    /// Reads its certificate and key again.
    fn reload_certificate(&self, py: Python<'_>) -> PyResult<()> {
        py.call_engine(|| self.0.reload_certificate()).or_raise(py)
    }

    /// Has clients give another password from then on.
    fn set_password(&self, py: Python<'_>, password: String) -> PyResult<()> {
        self.0.set_password(password).or_raise(py)
    }

    /// A warning to the operator, such as a certificate that is about to expire.
    fn warning(&self) -> Option<String> {
        self.0.warning()
    }

    /// False once it was stopped, or a thread of it has ended by itself.
    fn is_running(&self, py: Python<'_>) -> bool {
        py.call_engine(|| self.0.is_running())
    }

    /// Stops: requests that came are answered, and a store that is open to write is committed.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        py.call_engine(|| self.0.stop()).or_raise(py)
    }
}

/// A time in seconds; none for 0 and for what is longer than a clock can count.
fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero())
}
