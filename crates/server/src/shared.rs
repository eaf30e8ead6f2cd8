//! The state that all threads of a server share.

use crate::catalog::Catalog;
use crate::certificate;
use crate::clients::Clients;
use crate::cluster::Cluster;
use crate::commands::Queued;
use crate::events::Limits;
use crate::gather::{Loans, Plan};
use crate::hot::HotSets;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::rates::Rates;
use crate::refusal::Refusal;
use crate::status::Status;
use crate::timer::{Done, Job};
use crate::tls::Tls;
use embedrock_core::Store;
use parking_lot::{Mutex, RwLock};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Instant;

/// Jobs that may wait. A connection has one at a time, and most servers have few that ask for any.
pub(crate) const JOBS_MAX: usize = 1024;

/// The state that all threads of a server share.
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) options: Options,
    /// Its listening address.
    pub(crate) address: SocketAddr,
    pub(crate) catalog: Catalog,
    /// Its part in a cluster, if it has one.
    pub(crate) cluster: Option<Cluster>,
    /// The modes in which rows are sent.
    pub(crate) plan: Plan,
    /// Rows that are lent to the kernel.
    pub(crate) loans: Loans,
    /// Shared by turns of loops, which look tables up and read rows; alone for the moment in which
    /// the store moves to another commit. Taken before the locks of the store that verbs take.
    pub(crate) moves: RwLock<()>,
    pub(crate) metrics: Metrics,
    /// Limits of what it may have to log often.
    pub(crate) limits: Limits,
    /// Memory of requests that wait for `EXEC`.
    pub(crate) queued: Arc<Queued>,
    /// The resources that connections use.
    pub(crate) clients: Clients,
    /// The password that clients must give first. A leaf.
    pub(crate) password: RwLock<Option<String>>,
    /// Encryption.
    pub(crate) tls: Option<Tls>,
    /// The rates of requests.
    pub(crate) rates: Rates,
    /// Tells this run of the server from others: 40 hexadecimal digits.
    pub(crate) run_id: String,
    /// Connections that wait for a commit, a refresh or the like.
    pub(crate) blocked: AtomicUsize,
    /// Whether the server is about to end.
    pub(crate) is_stopping: AtomicBool,
    pub(crate) begun: Instant,
    /// The reason why the last commit or refresh failed, until one succeeds. A leaf.
    pub(crate) timer_failure: Mutex<Option<String>>,
    /// The last commit or refresh, whether it succeeded or not. A leaf.
    pub(crate) last_task: Mutex<Option<Done>>,
    pub(crate) status: Status,
    pub(crate) hot: HotSets,
    /// Whether a server that reads stays at its commit, instead of following the newest.
    pub(crate) is_pinned: AtomicBool,
    /// Guards the sender alone, for as long as a job takes to be handed over.
    pub(crate) jobs: Mutex<Option<SyncSender<Job>>>,
}

impl Shared {
    /// Whether the server changes its store.
    pub(crate) fn is_writable(&self) -> bool {
        !self.store.options().read_only
    }

    /// The problem that keeps the server from doing all that it should, if one is known without
    /// reading the store.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.store.is_poisoned() {
            return Some("the store refuses writes and commits after an error".to_owned());
        }
        // The next commit or refresh would report a folder that is elsewhere.
        if let Ok(Some(what)) = self.store.displaced() {
            return Some(what);
        }
        self.timer_failure.lock().clone()
    }

    /// A warning to the operator about a condition that the server itself cannot change, such as a
    /// certificate that is about to expire.
    pub(crate) fn warning(&self) -> Option<String> {
        let validity = self.tls.as_ref().and_then(Tls::validity)?;
        validity.warning(certificate::now_unix_s())
    }

    /// Hands a job over.
    pub(crate) fn begin(&self, job: Job) -> Result<(), Refusal> {
        let jobs = self.jobs.lock();
        let sent = jobs.as_ref().map(|jobs| jobs.try_send(job));
        match sent {
            Some(Ok(())) => {
                self.blocked.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Some(Err(_)) => Err(Refusal::new("too many commits and refreshes wait; try again")),
            None => Err(Refusal::new("the server is stopping")),
        }
    }
}
