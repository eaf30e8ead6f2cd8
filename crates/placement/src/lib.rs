//! Placement of the rows of an embedding table in pages, and replicas of some of them.
//!
//! A table that is served from an SSD reads whole pages, of which a query uses few rows. This crate
//! decides from a trace of queries where rows lie, so that queries read few pages. It has pure
//! functions only: no input or output, no threads that outlive a call, nothing of the engine.
//!
//! ```
//! use embedrock_placement::evaluate::{EvaluateOptions, evaluate};
//! use embedrock_placement::partition::{Next, PartitionOptions, partition};
//! use embedrock_placement::replicas::{ReplicaOptions, residual};
//! use embedrock_placement::{Pages, trace::Trace};
//!
//! # fn main() -> embedrock_placement::Result<()> {
//! let trace = Trace::from_queries(6, [[0, 3], [1, 4], [3, 0], [1, 4], [0, 4], [0, 4]])?;
//! let (learned, held_out) = trace.split(0.7)?;
//! let placement = partition(learned, &PartitionOptions::new(2), |_| Next::Continue)?;
//! let options = ReplicaOptions::new(0.5);
//! let replicas = residual(&placement, learned, &options, |_, _| Next::Continue)?;
//! let pages = Pages::with_replicas(&placement, &replicas)?;
//! let found = evaluate(&pages, held_out, &EvaluateOptions::default())?;
//! assert_eq!(found.rows, 4);
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! **Home pages.** Each row is a vertex and each query a hyperedge. A [`partition`](mod@partition)
//! cuts the rows in two, then both halves, until a part is one page. To cut, it begins with any
//! halves. A pass computes for each row how much nearer its queries would come to needing one half
//! only if it changed sides: a query with n rows on a side needs it with the chance 1 - (1 - p)^n,
//! if each of its rows is wanted with the chance p = 0.5. The side that a row prefers, and how
//! strongly, is its bias; a selection around the middle finds the rows with the greatest bias, and
//! these form the right half. One exchange in four is skipped by chance, so that two groups do not
//! change places for ever. A part that no longer gains stalls. A query goes on in a half where it
//! still has two rows; elsewhere it reads one page whatever happens.
//!
//! On upper levels a side is not one page but t pages, and a query with many rows needs both sides
//! anyhow. By choice ([`Objective`](partition::Objective)) what counts there is how its rows will
//! spread over the pages, t (1 - (1 - p/t)^n), which is the same for one page.
//!
//! **Replica pages** ([`replicas`]) follow the home pages, best first. By connectivity priority, a
//! base is a row whose queries read many pages, and its page has the rows that are asked for most
//! together with it. By residual greedy, each page is the one that saves most pages after all
//! before it: of pages around one row each, or of the pages of other partitions.
//!
//! **Reading** ([`cover`]). A query takes its rows in order of how few pages they have, and for
//! each that is still missing the page with most missing rows.
//!
//! # Sources
//!
//! * Fan, Xie, Jiang, Lu: *MaxEmbed: Maximizing SSD bandwidth utilization for huge embedding models
//!   serving*, ASPLOS 2024: pages from a partition, connectivity priority, one-pass selection.
//! * Kabiljo et al.: *Social Hash Partitioner: A Scalable Distributed Hypergraph Partitioner*,
//!   VLDB 2017: the objective, its projection to the pages in the end, bisection by passes.
//! * Mackenzie, Petri, Moffat: *Tradeoff Options for Bipartite Graph Partitioning*, 2022, and
//!   Lucene's reordering of documents: selection around the middle instead of sorting.
//! * Minoux: *Accelerated greedy algorithms for maximizing submodular set functions*, 1978: the
//!   lazy queue. Johnson: *Approximation algorithms for combinatorial problems*, 1974: greedy set
//!   cover.
#![deny(unsafe_code)]

mod error;
mod pages;
mod parallel;
mod placement;
mod random;

pub mod baselines;
pub mod cover;
pub mod evaluate;
pub mod keys;
pub mod partition;
pub mod replicas;
pub mod trace;

pub use error::{Error, ErrorKind, Result};
pub use pages::Pages;
pub use placement::Placement;
