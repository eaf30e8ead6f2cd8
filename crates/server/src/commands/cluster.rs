//! Commands by which clients learn which server has what.

use super::{Call, Outcome, shown, syntax};
use crate::cluster::{View, slot_of_name};
use crate::refusal::Refusal;
use crate::resp::Writer;
use crate::timer::Task;
use std::fmt::Write as _;

/// `CLUSTER SLOTS|SHARDS|NODES|INFO|MYID|KEYSLOT name`
pub(super) fn cluster(call: &mut Call<'_>) -> Outcome {
    let view = view(call)?;
    let (what, count) = (call.argument(1)?.to_ascii_uppercase(), call.arguments.len());
    match (what.as_slice(), count) {
        (b"SLOTS", 2) => call.reply(|writer| slots(writer, view)),
        (b"SHARDS", 2) => {
            let is_tls = call.shared.options.tls.is_some();
            call.reply(|writer| shards(writer, view, is_tls));
        }
        (b"NODES", 2) => call.reply(|writer| writer.bulk(nodes(view).as_bytes())),
        (b"INFO", 2) => call.reply(|writer| writer.bulk(info(view).as_bytes())),
        (b"MYID", 2) => call.reply(|writer| writer.bulk(view.map.nodes[view.me].id.as_bytes())),
        (b"KEYSLOT", 3) => {
            let slot = slot_of_name(call.argument(2)?);
            call.reply(|writer| writer.integer(i64::from(slot)));
        }
        (b"COUNTKEYSINSLOT" | b"GETKEYSINSLOT", _) => {
            return Err(Refusal::new(format!(
                "CLUSTER {} is not there: rows are not kept by slot; EMB.TABLES has how many rows \
                 there are",
                shown(&what)
            )));
        }
        _ => {
            return Err(Refusal::new(format!(
                "unknown subcommand or wrong number of arguments for CLUSTER {}; servers have a \
                 map in a file, which EMB.CLUSTER RELOAD reads again",
                shown(&what)
            )));
        }
    }
    Ok(())
}

/// `READONLY`, `READWRITE`, `ASKING`: what clients of a cluster send to replicas and while a slot
/// is on its way. There are no replicas, and a bucket has one server at any time.
pub(super) fn accept(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    call.done()
}

/// `EMB.CLUSTER RELOAD`
pub(super) fn reload(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    match call.argument(1)?.eq_ignore_ascii_case(b"RELOAD") {
        true => call.begin_job(Task::ReloadMap),
        false => Err(syntax()),
    }
}

fn view<'a>(call: &Call<'a>) -> Result<&'a View, Refusal> {
    call.cluster.ok_or_else(|| {
        Refusal::new("This server has cluster support disabled: it was started without --cluster")
    })
}

fn slots(writer: &mut Writer<'_>, view: &View) {
    writer.array(view.map.ranges.len());
    for (begin, end, owner) in &view.map.ranges {
        let node = &view.map.nodes[*owner];
        writer.array(3);
        writer.integer(i64::from(*begin));
        writer.integer(i64::from(*end));
        writer.array(4);
        writer.bulk(node.host.as_bytes());
        writer.integer(i64::from(node.port));
        writer.bulk(node.id.as_bytes());
        writer.array(0);
    }
}

fn shards(writer: &mut Writer<'_>, view: &View, is_tls: bool) {
    writer.array(view.map.nodes.len());
    for (number, node) in view.map.nodes.iter().enumerate() {
        let ranges = view.map.ranges.iter().filter(|(_, _, owner)| *owner == number);
        writer.map(2);
        writer.bulk(b"slots");
        writer.array(ranges.clone().count() * 2);
        for (begin, end, _) in ranges {
            writer.integer(i64::from(*begin));
            writer.integer(i64::from(*end));
        }
        writer.bulk(b"nodes");
        writer.array(1);
        writer.map(7);
        let port = if is_tls { "tls-port" } else { "port" };
        writer.bulk(b"id");
        writer.bulk(node.id.as_bytes());
        writer.bulk(port.as_bytes());
        writer.integer(i64::from(node.port));
        for (key, value) in [("ip", node.host.as_str()), ("endpoint", &node.host)] {
            writer.bulk(key.as_bytes());
            writer.bulk(value.as_bytes());
        }
        writer.bulk(b"role");
        writer.bulk(b"master");
        writer.bulk(b"replication-offset");
        writer.integer(0);
        writer.bulk(b"health");
        writer.bulk(b"online");
    }
}

/// One line for each server. The facts that servers of Redis know of each other are unknown here.
fn nodes(view: &View) -> String {
    let mut text = String::new();
    for (number, node) in view.map.nodes.iter().enumerate() {
        let (id, address, epoch) = (&node.id, node.address(), view.epoch);
        let flags = if number == view.me { "myself,master" } else { "master" };
        let _ = write!(text, "{id} {address}@0 {flags} - 0 0 {epoch} connected");
        for (begin, end, _) in view.map.ranges.iter().filter(|(_, _, owner)| *owner == number) {
            let _ = match begin == end {
                true => write!(text, " {begin}"),
                false => write!(text, " {begin}-{end}"),
            };
        }
        text.push('\n');
    }
    text
}

fn info(view: &View) -> String {
    let (known, epoch) = (view.map.nodes.len(), view.epoch);
    let size = view.map.nodes.iter().filter(|node| !node.buckets.is_empty()).count();
    let assigned = crate::cluster::SLOTS;
    format!(
        "cluster_enabled:1\r\ncluster_state:ok\r\ncluster_slots_assigned:{assigned}\r\n\
         cluster_slots_ok:{assigned}\r\ncluster_slots_pfail:0\r\ncluster_slots_fail:0\r\n\
         cluster_known_nodes:{known}\r\ncluster_size:{size}\r\ncluster_current_epoch:{epoch}\r\n\
         cluster_my_epoch:{epoch}\r\n"
    )
}
