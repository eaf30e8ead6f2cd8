//! The buckets of a request's keys, and whether this server has them.
//!
//! A name may have the bucket of its keys between braces, `user:{0017}` and `user:{0017}:17`: then
//! clients of Redis Cluster find the server by themselves. A server that is in no cluster takes the
//! same names.

use super::arguments::{key, split_key};
use super::{Call, Command, Outcome, find_table, shown};
use crate::catalog::{Table, Tables};
use crate::cluster::{View, bucket_of_tag, split_tag};
use crate::refusal::Refusal;
use embedrock_core::buckets::bucket_of;

/// A table as a request names it, and the bucket that all its keys are said to be in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'t> {
    pub(super) table: &'t Table,
    pub(super) bucket: Option<u16>,
}

impl<'t> Named<'t> {
    /// `table`, or `table:{bucket}`. A table of just that name comes first.
    pub(super) fn find(tables: &'t Tables, name: &[u8]) -> Result<Self, Refusal> {
        if let Some(table) = tables.get(name) {
            return Ok(Self { table, bucket: None });
        }
        let (name, tag) = split_tag(name).map_or((name, None), |(name, tag)| (name, Some(tag)));
        let table = find_table(tables, name)?;
        let Some(tag) = tag else { return Ok(Self { table, bucket: None }) };
        match bucket_of_tag(tag) {
            Some(bucket) => Ok(Self { table, bucket: Some(bucket) }),
            None => Err(Refusal::new(format!(
                "'{{{}}}' is no bucket, expected four digits, {{0000}} to {{1023}}",
                shown(tag)
            ))),
        }
    }

    /// The table of `table:key` or `table:{bucket}:key`, and the key. In a cluster there has to be
    /// a bucket, for without it clients ask any server.
    pub(super) fn find_key(
        tables: &'t Tables,
        cluster: Option<&View>,
        name: &[u8],
    ) -> Result<(Self, u64), Refusal> {
        let (before, digits) = split_key(name)?;
        let (named, key) = (Self::find(tables, before)?, key(digits)?);
        named.check_key(cluster, name, key)?;
        Ok((named, key))
    }

    /// As [`check`](Self::check), of a key whose name this is.
    pub(super) fn check_key(&self, cluster: Option<&View>, name: &[u8], key: u64) -> Outcome {
        if cluster.is_some() && self.bucket.is_none() {
            let (table, bucket) = (&self.table.name, self.bucket_of(key));
            return Err(Refusal::new(format!(
                "'{}' does not say its bucket, by which clients of a cluster find the server: ask \
                 for {table}:{{{bucket:04}}}:{key}",
                shown(name)
            )));
        }
        self.check(cluster, &[key])
    }

    /// Refuses keys that are in another bucket than the request says, or that another server has.
    pub(super) fn check(&self, cluster: Option<&View>, keys: &[u64]) -> Outcome {
        match (self.bucket, cluster) {
            (None, None) => Ok(()),
            (None, Some(view)) => keys.iter().try_for_each(|key| view.check(self.bucket_of(*key))),
            (Some(bucket), cluster) => {
                cluster.map_or(Ok(()), |view| view.check(bucket))?;
                match keys.iter().find(|key| self.bucket_of(**key) != bucket) {
                    None => Ok(()),
                    Some(key) => Err(Refusal::coded(
                        "CROSSSLOT",
                        format!(
                            "key {key} of table '{}' is in bucket {:04}, and the request says \
                             {bucket:04}",
                            self.table.name,
                            self.bucket_of(*key)
                        ),
                    )),
                }
            }
        }
    }

    fn bucket_of(&self, key: u64) -> u16 {
        bucket_of(key, self.table.ids.is_some())
    }
}

/// Finds keys of one request, which have to be in one bucket where there is a cluster.
#[derive(Debug, Default)]
pub(super) struct OneSlot(Option<u16>);

impl OneSlot {
    /// Refuses a bucket that is not that of the keys before.
    pub(super) fn check(&mut self, cluster: Option<&View>, bucket: Option<u16>) -> Outcome {
        let Some(bucket) = bucket.filter(|_| cluster.is_some()) else { return Ok(()) };
        match *self.0.get_or_insert(bucket) == bucket {
            true => Ok(()),
            false => {
                Err(Refusal::coded("CROSSSLOT", "Keys in request don't hash to the same slot"))
            }
        }
    }
}

/// Refuses a request that names a bucket of another server, before its keys are looked at.
pub(super) fn check_names(call: &Call<'_>, command: &Command) -> Outcome {
    let Some(view) = call.cluster else { return Ok(()) };
    let places = command.places_of_keys(call.arguments.len());
    for name in places.filter_map(|place| call.arguments.get(place)) {
        // `user:{0017}`, with a key behind it or not.
        let end = name.iter().rposition(|byte| *byte == b'}').map_or(0, |end| end + 1);
        let bucket = split_tag(&name[..end]).and_then(|(_, tag)| bucket_of_tag(tag));
        bucket.map_or(Ok(()), |bucket| view.check(bucket))?;
    }
    Ok(())
}
