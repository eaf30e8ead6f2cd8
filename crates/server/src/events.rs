//! The log lines of a server, in one place: their texts, their levels, and the limits of one a
//! second.
//!
//! Events that a client can cause as often as it likes have a limit, so that it cannot fill a disk
//! with them. A line names the peer, never the bytes it sent: no key, no row, no password. Facts
//! that the command `embedrock serve` prints anyway, such as a certificate that is about to expire,
//! are `debug`, or not here.

use crate::shared::Shared;
use embedrock_core::logs::{Limit, Seconds, without_keys};
use log::{debug, error, info, warn};
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

const SERVER: &str = "embedrock::server";
const CLIENTS: &str = "embedrock::server::clients";
const TIMER: &str = "embedrock::server::timer";

/// Limits of events that clients can cause.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    full: Limit,
    not_accepted: Limit,
    handshakes: Limit,
    malformed: Limit,
    oversized: Limit,
    wrong_passwords: Limit,
    timed_out: Limit,
    abandoned: Limit,
    overflowed: Limit,
    failed_tasks: Limit,
}

/// The address of the peer, if it is known.
pub(crate) struct Peer(pub(crate) Option<SocketAddr>);

impl Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("a client that is gone"),
        }
    }
}

/// It listens.
pub(crate) fn started(shared: &Shared, metrics: Option<SocketAddr>) {
    let options = &shared.options;
    let writes = if shared.is_writable() { "reads and writes" } else { "reads" };
    let tls = if shared.tls.is_some() { "over TLS" } else { "without TLS" };
    let password = if options.password.is_some() { "with a password" } else { "without password" };
    info!(
        target: SERVER,
        "{}: serving at {}, {writes}, {tls}, {password}, {} threads, at most {} connections",
        shared.store.path().display(),
        shared.address,
        options.threads,
        options.max_connections,
    );
    if let Some(metrics) = metrics {
        info!(target: SERVER, "metrics and status page at http://{metrics}/");
    }
    if let Some(cluster) = &shared.cluster {
        let view = cluster.view();
        let node = &view.map.nodes[view.me];
        info!(target: SERVER, "node '{}' of the cluster, with buckets {}", node.id, node.buckets);
    }
}

pub(crate) fn stopping() {
    debug!(target: SERVER, "stopping: no connection is accepted any more");
}

pub(crate) fn stopped(shared: &Shared, outcome: &embedrock_core::Result<()>) {
    let after = Seconds(shared.begun.elapsed());
    let requests = shared.metrics.requests();
    match outcome {
        Ok(()) => info!(target: SERVER, "stopped after {after} and {requests} requests"),
        Err(because) => error!(
            target: SERVER,
            "stopped after {after} and {requests} requests, not as it should: {}",
            without_keys(because.message()),
        ),
    }
}

pub(crate) fn certificate_read(path: &Path) {
    debug!(target: SERVER, "the certificate {} was read again", path.display());
}

pub(crate) fn password_changed() {
    debug!(target: SERVER, "clients give another password from here on");
}

/// Another map: which buckets moved here, and which away.
pub(crate) fn map_read(epoch: u64, node: &str, buckets: &impl Display) {
    info!(
        target: SERVER,
        "map {epoch} of the cluster was read: node '{node}' has buckets {buckets}"
    );
}

impl Limits {
    /// A connection came for which there is no place.
    pub(crate) fn full(&self, peer: SocketAddr, most: usize) {
        if let Some(left_out) = self.full.pass() {
            warn!(
                target: CLIENTS,
                "{peer} was refused: all {most} connections (--max-connections) are taken{left_out}"
            );
        }
    }

    /// The system accepts none.
    pub(crate) fn not_accepted(&self, because: &std::io::Error) {
        if let Some(left_out) = self.not_accepted.pass() {
            error!(target: CLIENTS, "no connection can be accepted: {because}{left_out}");
        }
    }

    /// Encryption was not agreed upon.
    pub(crate) fn handshake(&self, peer: &Peer, because: &std::io::Error) {
        if let Some(left_out) = self.handshakes.pass() {
            warn!(target: CLIENTS, "{peer} was refused in the TLS handshake: {because}{left_out}");
        }
    }

    /// The bytes received are no request.
    pub(crate) fn malformed(&self, peer: &Peer) {
        if let Some(left_out) = self.malformed.pass() {
            warn!(target: CLIENTS, "{peer} was cut off: it sent what is no request{left_out}");
        }
    }

    /// A request was refused for its size.
    pub(crate) fn oversized(&self, peer: &Peer) {
        if let Some(left_out) = self.oversized.pass() {
            warn!(
                target: CLIENTS,
                "{peer}: a request beyond --max-request-bytes or --max-keys was refused{left_out}"
            );
        }
    }

    pub(crate) fn wrong_password(&self, peer: &Peer, is_last: bool) {
        if let Some(left_out) = self.wrong_passwords.pass() {
            let then = if is_last { " too often, and was cut off" } else { "" };
            warn!(target: CLIENTS, "{peer} gave a wrong password{then}{left_out}");
        }
    }

    /// A connection was silent for too long, or slow amid a request or its reply.
    pub(crate) fn timed_out(&self, peer: &Peer, silent: Duration, is_idle: bool) {
        if let Some(left_out) = self.timed_out.pass() {
            let option = if is_idle { "--idle" } else { "--stall" };
            let silent = Seconds(silent);
            info!(
                target: CLIENTS,
                "{peer} was cut off after {silent} of silence ({option}){left_out}"
            );
        }
    }

    /// A connection was left behind the error of a request that was refused.
    pub(crate) fn abandoned(&self, peer: &Peer) {
        if let Some(left_out) = self.abandoned.pass() {
            info!(
                target: CLIENTS,
                "{peer} has left its connection behind a request that was refused{left_out}"
            );
        }
    }

    /// Requests and replies take too much memory, and this one's most.
    pub(crate) fn overflowed(&self, peer: &Peer, bytes: usize) {
        if let Some(left_out) = self.overflowed.pass() {
            warn!(
                target: CLIENTS,
                "{peer} was cut off: its requests and replies take {bytes} bytes, and all of them \
                 more than --client-memory{left_out}"
            );
        }
    }
}

/// A commit or a refresh is over. `was_failing` says that the one before had failed.
pub(crate) fn task(shared: &Shared, failure: Option<&str>, was_failing: bool, took: Duration) {
    match failure {
        Some(failure) => {
            if let Some(left_out) = shared.limits.failed_tasks.pass() {
                error!(target: TIMER, "{} has failed{left_out}", without_keys(failure));
            }
        }
        None if was_failing => info!(target: TIMER, "commits and refreshes succeed again"),
        None => debug!(target: TIMER, "a commit or a refresh took {}", Seconds(took)),
    }
}
