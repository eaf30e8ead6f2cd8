//! A server: its threads, from the first to the last.

use crate::acceptor::Acceptor;
use crate::catalog::Catalog;
use crate::clients::Clients;
use crate::cluster::Cluster;
use crate::events::{self, Limits};
use crate::gather::{Loans, Plan};
use crate::hot::{self, HotSets};
use crate::metrics::Metrics;
use crate::options::{Options, check_password};
use crate::rates::Rates;
use crate::shared::{JOBS_MAX, Shared};
use crate::status::{self, Status};
use crate::tls::Tls;
use crate::worker::{Mail, Post, Worker};
use crate::{http, timer};
use embedrock_core::{Error, ErrorKind, Result, Store};
use mio::Waker;
use parking_lot::{Mutex, RwLock};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Instant;

type Thread = JoinHandle<Result<()>>;

/// A store that clients reach over the Redis protocol.
///
/// Dropping it stops it, too; [`stop`](Self::stop) tells what went wrong.
pub struct Server {
    shared: Arc<Shared>,
    metrics_address: Option<SocketAddr>,
    posts: Vec<Post>,
    acceptor_waker: Waker,
    threads: Mutex<Option<Threads>>,
}

struct Threads {
    acceptor: Thread,
    workers: Vec<Thread>,
    /// The one that looks after rows which are lent to the kernel.
    loans: Option<Thread>,
    timer: Thread,
    hot: Thread,
    /// The threads for monitors: one that answers, and one that samples.
    watch: Option<(Thread, Thread)>,
}

impl Server {
    /// Listens, and serves a store until it is stopped. One that is open read-only is read, and
    /// follows the newest commit unless it was opened at the commit of a step; one that is open to
    /// write takes writes of clients, and commits them on a timer and at the end.
    ///
    /// *Errors*: `Misuse` for options that cannot work, among them an address that others can reach
    /// without password and TLS, and for a map of a cluster that is none or does not have this
    /// server; `Io` where the address cannot be listened on, or the map not be read; `Budget` where
    /// the store's memory cannot work.
    pub fn start(store: Store, options: Options) -> Result<Self> {
        store.check_call()?;
        let wanted = options.validate()?;
        let wanted_metrics = options.metrics_address()?;
        let catalog = Catalog::of(&store);
        let may_lend = !store.options().read_only || catalog.tables().lend_any();
        let plan = Plan::new(options.gather, options.tls.is_some(), may_lend)?;
        let tls = options.tls.clone().map(Tls::open).transpose()?;
        let at = |what: &str, address: SocketAddr| {
            let what = what.to_owned();
            move |error| Error::os(format!("{what} {address}"), error)
        };
        let listener = mio::net::TcpListener::bind(wanted).map_err(at("listen on", wanted))?;
        let address = listener.local_addr().map_err(at("listen on", wanted))?;
        let cluster = options.cluster.clone().map(|cluster| Cluster::open(cluster, address));
        let cluster = cluster.transpose()?;
        let http = wanted_metrics
            .map(|wanted| http::Monitors::bind(wanted).map_err(at("listen for metrics on", wanted)))
            .transpose()?;
        let metrics_address = http.as_ref().and_then(http::Monitors::address);
        // A budget that cannot work is told now, and not to the first client.
        if !store.tables().is_empty() {
            store.get(&mut [])?;
        }
        let is_pinned = store.options().read_only && store.options().step.is_some();
        let (jobs, job_queue) = sync_channel(JOBS_MAX);
        let shared = Arc::new(Shared {
            catalog,
            plan,
            loans: Loans::default(),
            cluster,
            metrics: Metrics::new(),
            limits: Limits::default(),
            moves: RwLock::new(()),
            queued: Arc::default(),
            clients: Clients::new(options.client_memory()),
            password: RwLock::new(options.password.clone()),
            tls,
            rates: Rates::default(),
            run_id: run_id()?,
            blocked: AtomicUsize::new(0),
            is_stopping: AtomicBool::new(false),
            begun: Instant::now(),
            timer_failure: Mutex::new(None),
            last_task: Mutex::new(None),
            status: Status::default(),
            hot: HotSets::default(),
            is_pinned: AtomicBool::new(is_pinned),
            jobs: Mutex::new(Some(jobs)),
            address,
            options,
            store,
        });
        let failed = |error| Error::os("make an event loop", error);
        let (mut workers, mut posts) = (Vec::new(), Vec::new());
        for number in 0..shared.options.threads {
            let (worker, post) = Worker::new(number, shared.clone()).map_err(failed)?;
            workers.push(worker);
            posts.push(post);
        }
        let (acceptor, acceptor_waker) =
            Acceptor::new(shared.clone(), listener, posts.clone()).map_err(failed)?;

        let looped = |ran: std::io::Result<()>| ran.map_err(|e| Error::os("wait for sockets", e));
        let workers = workers
            .into_iter()
            .enumerate()
            .map(|(n, worker)| spawn(&format!("serve-{n}"), move || looped(worker.run())));
        let workers = workers.collect::<Result<Vec<_>>>()?;
        let loans = shared.plan.has_zero_copy().then(|| {
            let shared = shared.clone();
            spawn("serve-loans", move || {
                shared.loans.run(|| {
                    shared.metrics.timed_out.inc();
                });
                Ok(())
            })
        });
        let loans = loans.transpose()?;
        let (timer_shared, timer_posts) = (shared.clone(), posts.clone());
        let timer =
            spawn("serve-timer", move || timer::run(&timer_shared, &job_queue, &timer_posts))?;
        let hot_shared = shared.clone();
        let hot = spawn("serve-hot", move || {
            hot::run(&hot_shared);
            Ok(())
        })?;
        let watch = http.map(|monitors| -> Result<_> {
            let (http_shared, status_shared) = (shared.clone(), shared.clone());
            let http = spawn("serve-http", move || looped(monitors.run(&http_shared)))?;
            let status = spawn("serve-status", move || {
                status::run(&status_shared);
                Ok(())
            })?;
            Ok((http, status))
        });
        let watch = watch.transpose()?;
        let acceptor = spawn("serve-accept", move || looped(acceptor.run()))?;
        let threads = Mutex::new(Some(Threads { acceptor, workers, loans, timer, hot, watch }));
        events::started(&shared, metrics_address);
        Ok(Self { shared, metrics_address, posts, acceptor_waker, threads })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The address of its metrics, if any.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The modes in which rows are sent, in words.
    pub fn gather(&self) -> String {
        self.shared.plan.to_string()
    }

    /// Reads the map of its cluster again. From then on clients are sent to the servers it names.
    /// Returns the number of maps so far.
    ///
    /// *Errors*: `Misuse` without a cluster, for what is no map, and for one that does not have
    /// this server's node; `Io`. The map stays the one before.
    pub fn reload_map(&self) -> Result<u64> {
        reload_map(&self.shared)
    }

    /// Reads its certificate and key again: connections that begin from then on get them.
    ///
    /// *Errors*: `Misuse` without TLS, and for files that do not hold what they should, by name;
    /// then those before stay.
    pub fn reload_certificate(&self) -> Result<()> {
        let tls = self.shared.tls.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Misuse, "this server does not encrypt: it has no certificate")
        })?;
        tls.reload()?;
        events::certificate_read(tls.certificate());
        Ok(())
    }

    /// Has clients give another password from then on. Those that were let in stay.
    ///
    /// *Errors*: `Misuse` where there was none, and for one that is empty or too long.
    pub fn set_password(&self, password: String) -> Result<()> {
        check_password(&password)?;
        let mut held = self.shared.password.write();
        if held.is_none() {
            let message = "this server has no password: start it with one";
            return Err(Error::new(ErrorKind::Misuse, message));
        }
        *held = Some(password);
        drop(held);
        events::password_changed();
        Ok(())
    }

    /// A warning for the operator, such as a certificate that is about to expire.
    pub fn warning(&self) -> Option<String> {
        self.shared.warning()
    }

    /// False once it was stopped, or a thread of it has ended by itself: then `stop` says why.
    pub fn is_running(&self) -> bool {
        let threads = self.threads.lock();
        threads.as_ref().is_some_and(|t| {
            let watch = t.watch.iter().flat_map(|(http, status)| [http, status]);
            let others = [&t.acceptor, &t.timer, &t.hot].into_iter().chain(&t.loans);
            let mut all = t.workers.iter().chain(others).chain(watch);
            all.all(|thread| !thread.is_finished())
        })
    }

    /// Stops: no connection is accepted any more, whole requests that were read are answered, and a
    /// store that is open to write is committed. A second call does nothing.
    ///
    /// *Errors*: the first of a thread, or of the last commit. *Blocking*: up to 5 seconds for
    /// clients that do not take their replies, and for the commit.
    pub fn stop(&self) -> Result<()> {
        let Some(threads) = self.threads.lock().take() else { return Ok(()) };
        events::stopping();
        // Pairs with the acquires of the threads that accept.
        self.shared.is_stopping.store(true, Ordering::Release);
        // If it cannot be woken it has ended.
        let _ = self.acceptor_waker.wake();
        let mut outcome = join(threads.acceptor);
        self.posts.iter().for_each(|post| post.send(Mail::Stop));
        for worker in threads.workers {
            outcome = outcome.and(join(worker));
        }
        self.shared.loans.end();
        outcome = outcome.and(threads.loans.map_or(Ok(()), join));
        self.shared.hot.end();
        // Without a sender the timer's thread ends.
        drop(self.shared.jobs.lock().take());
        outcome = outcome.and(join(threads.timer));
        // The last commit does not wait for rows that nobody will ask for.
        outcome = outcome.and(join(threads.hot));
        if let (Some((http, status)), Some(address)) = (threads.watch, self.metrics_address) {
            drop(TcpStream::connect(address));
            outcome = outcome.and(join(http));
            status.thread().unpark();
            outcome = outcome.and(join(status));
        }
        events::stopped(&self.shared, &outcome);
        outcome
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Callers who need the result call `stop`.
        let _ = self.stop();
    }
}

/// Reads the map of a server's cluster again.
pub(crate) fn reload_map(shared: &Shared) -> Result<u64> {
    let cluster = shared.cluster.as_ref().ok_or_else(|| {
        Error::new(ErrorKind::Misuse, "this server is in no cluster: there is no map to read")
    })?;
    cluster.reload()
}

/// 40 hexadecimal digits that no other run of a server has.
fn run_id() -> Result<String> {
    let mut bytes = [0; 20];
    let provider = rustls::crypto::ring::default_provider();
    provider.secure_random.fill(&mut bytes).map_err(|_| {
        Error::new(ErrorKind::Io, "the system gives no random numbers: is /dev/urandom there?")
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn spawn(name: &str, run: impl FnOnce() -> Result<()> + Send + 'static) -> Result<Thread> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(run).map_err(|error| Error::os(format!("start the thread {name}"), error))
}

fn join(thread: Thread) -> Result<()> {
    thread.join().unwrap_or_else(|_| {
        let message = "a thread of the server has panicked; what it served was cut off";
        Err(Error::new(ErrorKind::Poisoned, message))
    })
}
