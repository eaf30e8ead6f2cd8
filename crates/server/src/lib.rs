//! Serves the tables of a store over the Redis protocol, versions 2 and 3.
//!
//! A [`Server`] has threads that each serve their connections with an event loop, run every request
//! to its end, and read the rows of all requests of a turn with one call of the engine; one thread
//! that accepts; one that commits and refreshes; one that makes hot rows fast; and two for
//! monitors. It uses the engine's public interface alone, and holds no row but on its way out.
//!
//! # Threads and locks
//!
//! All threads end with the server. Some serve, each with its connections, an event loop and no
//! lock except those of the verbs; one accepts; one commits and refreshes; one promotes hot rows.
//! With a monitoring port, one thread answers there and one samples the server every two seconds.
//! At the start, one thread sends replies that are measured, and one receives them. One thread
//! looks after rows that are lent (`gather/loans.rs`) and waits for nobody: its lock, one for each
//! serving thread, is held for sends that do not wait, and nothing is taken under it. Data that the
//! kernel sends without a copy is held by the thread that sent it, until the kernel is done with it
//! (`gather/kernel.rs`). A turn requests rows that are lent last, and sends them before it requests
//! anything else.
//!
//! *moves* (`shared.rs`, `Shared::moves`) comes before all locks of the store that verbs take. A
//! turn of an event loop, which looks tables up and reads rows, shares it; a refresh that is ready
//! takes it alone for the moment in which it moves the store. The map of a cluster is behind a lock
//! of its own (`cluster/mod.rs`), held only to copy or replace a reference. The certificate
//! (`tls.rs`) and the password, which SIGHUP reads again, are behind such locks too.

mod acceptor;
mod catalog;
mod certificate;
mod clients;
mod cluster;
mod commands;
mod connection;
mod events;
mod exposition;
pub mod gather;
mod hot;
mod http;
mod latency;
mod linger;
pub mod logs;
mod metrics;
mod options;
mod output;
mod pace;
mod pulls;
mod rates;
mod refusal;
mod resp;
mod server;
mod session;
mod shared;
mod status;
mod stream;
mod timer;
mod tls;
mod worker;

pub use options::{ClusterOptions, Options, TlsFiles};
pub use server::Server;

#[cfg(target_endian = "big")]
compile_error!("rows cross the wire as they lie in memory, the least significant byte first");
