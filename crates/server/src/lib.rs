//! Serves the tables of a store over the Redis protocol, versions 2 and 3.
//!
//! A [`Server`] has threads that each serve their connections with an event loop, run every request
//! to its end, and read the rows of all requests of a turn with one call of the engine; one thread
//! that accepts; one that commits and refreshes; one that makes hot rows fast; and two for those
//! who watch. It uses the engine's public interface alone, and holds no row but on its way out.

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
