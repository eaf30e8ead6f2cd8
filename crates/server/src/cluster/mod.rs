//! Several servers that divide the buckets of their tables: which of them has what.
//!
//! A map in a file says it, the same for all of them. Servers do not talk to each other: each reads
//! the map when it starts and when it is told to, and sends clients that ask for other buckets to
//! the server that has them.

mod map;
mod slots;

pub(crate) use map::{Map, Node};
pub(crate) use slots::{SLOTS, bucket_of_tag, slot_of_bucket, slot_of_name, split_tag};

use crate::events;
use crate::options::ClusterOptions;
use crate::refusal::Refusal;
use embedrock_core::{Error, ErrorKind, Result};
use parking_lot::{Mutex, RwLock};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

/// The map as one server sees it.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) map: Map,
    /// This server's number in it.
    pub(crate) me: usize,
    /// Number of maps so far, this one included.
    pub(crate) epoch: u64,
}

impl View {
    /// Refuses a bucket that another server has, and says which.
    pub(crate) fn check(&self, bucket: u16) -> std::result::Result<(), Refusal> {
        let owner = self.map.owner(bucket);
        if owner == self.me {
            return Ok(());
        }
        let (slot, address) = (slot_of_bucket(bucket), self.map.nodes[owner].address());
        Err(Refusal::coded("MOVED", format!("{slot} {address}")))
    }
}

/// A server's part in a cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    options: ClusterOptions,
    view: RwLock<Arc<View>>,
    /// Held while a map is read and put in, before the view.
    reloading: Mutex<()>,
}

impl Cluster {
    /// Reads the map for a server that listens at an address.
    ///
    /// *Errors*: `Misuse` for what is no map, or does not have this server; `Io`.
    pub(crate) fn open(options: ClusterOptions, listens: SocketAddr) -> Result<Self> {
        let map = Map::read(&options.map)?;
        let me = match &options.node {
            Some(id) => named(&map, id, &options)?,
            None => listening(&map, listens, &options)?,
        };
        check_buckets(&map.nodes[me], &options, options.has_changed)?;
        let view = RwLock::new(Arc::new(View { map, me, epoch: 1 }));
        Ok(Self { options, view, reloading: Mutex::default() })
    }

    /// The map now.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.read().clone()
    }

    /// Reads the map again. This server stays the node that it is, by its id. It may get buckets
    /// whose rows are still to come. Returns how many maps there were. *Errors*: as
    /// [`open`](Self::open); the map stays the one before.
    pub(crate) fn reload(&self) -> Result<u64> {
        // One at a time from the reading on, so that an older map never follows a newer one.
        let _one = self.reloading.lock();
        let map = Map::read(&self.options.map)?;
        let mut view = self.view.write();
        let me = named(&map, &view.map.nodes[view.me].id, &self.options)?;
        check_buckets(&map.nodes[me], &self.options, true)?;
        let epoch = view.epoch + 1;
        let made = Arc::new(View { map, me, epoch });
        *view = made.clone();
        drop(view);
        let node = &made.map.nodes[me];
        events::map_read(epoch, &node.id, &node.buckets);
        Ok(epoch)
    }
}

fn named(map: &Map, id: &str, options: &ClusterOptions) -> Result<usize> {
    map.find(id).ok_or_else(|| {
        let (path, ids) = (options.map.display(), map.ids());
        let message = format!("{path} has no node '{id}', which this server is; it has {ids}");
        Error::new(ErrorKind::Misuse, message)
    })
}

/// Refuses a map that gives a server buckets of which its store has no rows: it would answer
/// initial rows for their keys. One that has changed may have got some; then it has to have any.
fn check_buckets(node: &Node, options: &ClusterOptions, has_changed: bool) -> Result<()> {
    let Some(stored) = &options.buckets else { return Ok(()) };
    let is_stored = |bucket: &u16| stored.contains(*bucket);
    let Some(lacking) = node.buckets.iter().find(|bucket| !is_stored(bucket)) else {
        return Ok(());
    };
    if has_changed && node.buckets.iter().any(|bucket| is_stored(&bucket)) {
        return Ok(());
    }
    let (path, id, given) = (options.map.display(), &node.id, &node.buckets);
    let message = format!(
        "{path} gives this server, node '{id}', the buckets {given}, and its store was made \
         with {stored}: for keys of bucket {lacking} it would answer initial rows; serve the store \
         of those buckets, or correct the map"
    );
    Err(Error::new(ErrorKind::Misuse, message))
}

/// The node whose address a server listens at.
fn listening(map: &Map, listens: SocketAddr, options: &ClusterOptions) -> Result<usize> {
    let is_here = |node: &Node| {
        // A name that cannot be looked up here is another server's, for all that is known.
        let found = (node.host.as_str(), node.port).to_socket_addrs();
        found.is_ok_and(|mut found| found.any(|address| address == listens))
    };
    map.nodes.iter().position(is_here).ok_or_else(|| {
        let path = options.map.display();
        let message = format!(
            "no node of {path} has the address {listens}, where this server listens; say which \
             it is: {}",
            map.ids()
        );
        Error::new(ErrorKind::Misuse, message)
    })
}
