//! The map of a cluster: which server has which buckets, from a file that people write.

use super::slots::{SLOTS, slot_of_bucket};
use embedrock_core::buckets::{BUCKETS, Buckets};
use embedrock_core::{Error, ErrorKind, Result};
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// A file that is larger is no map.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Longest id of a node.
const ID_BYTES_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MapFile {
    nodes: Vec<NodeEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeEntry {
    id: String,
    address: String,
    buckets: Option<String>,
}

/// A server of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) buckets: Buckets,
}

impl Node {
    /// Host and port, as clients are sent there.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// Slots from one to another, both included, and the number of the node that has them.
pub(crate) type SlotRange = (u16, u16, usize);

/// The servers of a cluster. Every bucket is one server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    pub(crate) nodes: Vec<Node>,
    /// The number of the node that has each bucket.
    owners: Vec<u16>,
    /// All slots, ascending.
    pub(crate) ranges: Vec<SlotRange>,
}

impl Map {
    /// Reads a map. *Errors*: `Misuse` for what is no map, and says why; `Io`.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let named =
            |error| Error::os(format!("read the map of the cluster, {}", path.display()), error);
        let mut text = String::new();
        let file = File::open(path).map_err(named)?;
        let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(named)?;
        if read as u64 > FILE_BYTES_MAX {
            return Err(misuse(path, format!("more than {FILE_BYTES_MAX} bytes")));
        }
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        Self::parse(&text, is_json).map_err(|why| misuse(path, why))
    }

    /// The map that a text is: TOML or JSON. The error is why it is none.
    fn parse(text: &str, is_json: bool) -> std::result::Result<Self, String> {
        let file: MapFile = match is_json {
            true => serde_json::from_str(text).map_err(|error| error.to_string())?,
            false => toml::from_str(text).map_err(|error| error.to_string())?,
        };
        if file.nodes.is_empty() {
            return Err("it has no nodes".to_owned());
        }
        let mut nodes: Vec<Node> = Vec::with_capacity(file.nodes.len());
        for entry in file.nodes {
            let node = node_of(entry)?;
            for other in &nodes {
                if other.id == node.id {
                    return Err(format!("two nodes have the id '{}'", node.id));
                }
                if (&other.host, other.port) == (&node.host, node.port) {
                    return Err(format!(
                        "nodes '{}' and '{}' have one address, {}",
                        other.id,
                        node.id,
                        node.address()
                    ));
                }
            }
            nodes.push(node);
        }
        let owners = owners_of(&nodes)?;
        let ranges = ranges_of(&owners);
        Ok(Self { nodes, owners, ranges })
    }

    /// The number of the node that has a bucket.
    pub(crate) fn owner(&self, bucket: u16) -> usize {
        usize::from(self.owners[usize::from(bucket)])
    }

    /// The number of a node by its id.
    pub(crate) fn find(&self, id: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }

    /// The ids of all nodes, for messages.
    pub(crate) fn ids(&self) -> String {
        let ids: Vec<String> = self.nodes.iter().map(|node| format!("'{}'", node.id)).collect();
        ids.join(", ")
    }
}

fn misuse(path: &Path, why: impl std::fmt::Display) -> Error {
    let path = path.display();
    Error::new(ErrorKind::Misuse, format!("{path} is no map of a cluster: {why}"))
}

fn node_of(entry: NodeEntry) -> std::result::Result<Node, String> {
    let NodeEntry { id, address, buckets } = entry;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if id.is_empty() || id.len() > ID_BYTES_MAX || !id.bytes().all(is_plain) {
        return Err(format!(
            "a node has the id {id:?}, expected 1 to {ID_BYTES_MAX} letters, digits, '-', '_', '.'"
        ));
    }
    let (host, port) = split_address(&address).ok_or_else(|| {
        format!("node '{id}' has the address {address:?}, expected HOST:PORT, as clients reach it")
    })?;
    let buckets = match buckets.as_deref() {
        None => Ok(Buckets::default()),
        Some(text) => text.parse(),
    };
    let buckets = buckets.map_err(|error: Error| format!("of node '{id}', {}", error.message()))?;
    Ok(Node { id, host, port, buckets })
}

/// Host and port; an IPv6 address has brackets, which are not part of the host.
fn split_address(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let is_plain = |byte: u8| byte.is_ascii_graphic();
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty() && host.bytes().all(is_plain)).then(|| (host.to_owned(), port))
}

/// The node of each bucket. The error names buckets that several nodes have, or none.
fn owners_of(nodes: &[Node]) -> std::result::Result<Vec<u16>, String> {
    let mut owners: Vec<Option<u16>> = vec![None; BUCKETS];
    for (number, node) in nodes.iter().enumerate() {
        for bucket in node.buckets.iter() {
            let owner = &mut owners[usize::from(bucket)];
            if let Some(other) = owner {
                return Err(format!(
                    "bucket {bucket} is of node '{}' and of node '{}'",
                    nodes[usize::from(*other)].id,
                    node.id
                ));
            }
            *owner = Some(number as u16);
        }
    }
    let holes = owners.iter().filter(|owner| owner.is_none()).count();
    if let Some(first) = owners.iter().position(Option::is_none) {
        let length = owners[first..].iter().take_while(|owner| owner.is_none()).count();
        return Err(format!(
            "{holes} of {BUCKETS} buckets are of no node, {first} to {} among them",
            first + length - 1
        ));
    }
    Ok(owners.into_iter().flatten().collect())
}

/// All slots by node. One that no bucket has goes with the next lower one that a bucket has, for
/// clients that want every slot to be somewhere.
fn ranges_of(owners: &[u16]) -> Vec<SlotRange> {
    let mut slots: Vec<(u16, usize)> = owners
        .iter()
        .enumerate()
        .map(|(bucket, owner)| (slot_of_bucket(bucket as u16), usize::from(*owner)))
        .collect();
    slots.sort_unstable();
    let mut ranges: Vec<SlotRange> = Vec::new();
    for (slot, owner) in slots {
        match ranges.last_mut() {
            Some((_, _, last)) if *last == owner => continue,
            Some((_, end, _)) => *end = slot - 1,
            None => {}
        }
        let begin = if ranges.is_empty() { 0 } else { slot };
        ranges.push((begin, SLOTS - 1, owner));
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: &str = r#"
        [[nodes]]
        id = "a"
        address = "10.0.0.1:6380"
        buckets = "0-340,1023"

        [[nodes]]
        id = "b"
        address = "[::1]:6381"
        buckets = "341-1022"

        [[nodes]]
        id = "new"
        address = "c.example:6380"
    "#;

    #[test]
    fn a_map_in_toml_or_json_gives_every_bucket_and_slot_a_node() {
        let map = Map::parse(THREE, false).unwrap();
        assert_eq!([0, 340, 341, 1022, 1023].map(|bucket| map.owner(bucket)), [0, 0, 1, 1, 0]);
        assert_eq!(
            (map.nodes[1].host.as_str(), map.nodes[1].address()),
            ("::1", "::1:6381".into())
        );
        assert_eq!((map.find("new"), map.find("d")), (Some(2), None));
        let mut next = 0;
        for (begin, end, owner) in &map.ranges {
            assert!(*begin == next && end >= begin && *owner < 2);
            next = end + 1;
        }
        assert_eq!(next, SLOTS);
        for bucket in 0..BUCKETS as u16 {
            let slot = slot_of_bucket(bucket);
            let range = map.ranges.iter().find(|(begin, end, _)| (begin..=end).contains(&&slot));
            assert_eq!(range.unwrap().2, map.owner(bucket));
        }
        let json = r#"{"nodes": [{"id": "a", "address": "h:1", "buckets": "0-1023"}]}"#;
        let map = Map::parse(json, true).unwrap();
        assert_eq!(map.ranges, [(0, SLOTS - 1, 0)]);
    }

    #[test]
    fn what_is_no_map_says_why() {
        for (from, to, said) in [
            ("0-340,1023", "0-340", "1 of 1024 buckets are of no node, 1023 to 1023"),
            ("341-1022", "350-1000", "31 of 1024 buckets are of no node, 341 to 349"),
            ("341-1022", "340-1022", "bucket 340 is of node 'a' and of node 'b'"),
            ("341-1022", "341-1024", "of node 'b', buckets are \"341-1024\""),
            ("\"b\"", "\"a\"", "two nodes have the id 'a'"),
            ("\"b\"", "\"b c\"", "id \"b c\""),
            ("[::1]:6381", "10.0.0.1:6380", "nodes 'a' and 'b' have one address, 10.0.0.1:6380"),
            ("[::1]:6381", "::1:6381", "expected HOST:PORT"),
            ("[::1]:6381", "host:0", "expected HOST:PORT"),
            ("id = \"b\"", "", "missing field `id`"),
            ("id = \"b\"", "id = \"b\"\nslots = \"1\"", "unknown field `slots`"),
            ("buckets = \"341-1022\"", "buckets = 7", "invalid type"),
        ] {
            let error = Map::parse(&THREE.replace(from, to), false).unwrap_err();
            assert!(error.contains(said), "{to}: {error}");
        }
        assert!(Map::parse("nodes = []", false).unwrap_err().contains("no nodes"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.json");
        assert_eq!(Map::read(&path).unwrap_err().kind(), ErrorKind::Io);
        std::fs::write(&path, THREE).unwrap();
        let error = Map::read(&path).unwrap_err();
        assert!(error.message().contains("map.json is no map of a cluster"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Misuse);
    }
}
