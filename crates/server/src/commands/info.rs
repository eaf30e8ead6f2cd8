//! Commands that tell which tables and commands there are.

use super::{COMMANDS, Call, Command, Outcome, shown};
use crate::refusal::Refusal;
use crate::resp::Writer;
use std::sync::atomic::Ordering;

/// `EMB.TABLES`
pub(super) fn tables(call: &mut Call<'_>) -> Outcome {
    let shared = call.shared;
    let tables = shared.store.tables();
    let step = shared.store.last_commit().map(|commit| commit.step);
    let is_pinned = shared.is_pinned.load(Ordering::Relaxed);
    call.reply(|writer| {
        writer.array(tables.len());
        for table in &tables {
            let spec = &table.spec;
            writer.map(12);
            for (key, value) in [
                ("name", spec.name.as_str()),
                ("dtype", spec.dtype.name()),
                ("optimizer", spec.optimizer.kind.name()),
                ("storage", spec.storage.name()),
            ] {
                writer.bulk(key.as_bytes());
                writer.bulk(value.as_bytes());
            }
            for (key, value) in [
                ("embedding_dim", spec.embedding_dim as u64),
                ("row_bytes", table.row_bytes as u64),
                ("state_words", table.state_words as u64),
                ("rows", table.rows),
            ] {
                writer.bulk(key.as_bytes());
                writer.integer(value as i64);
            }
            for (key, value) in [("num_embeddings", spec.num_embeddings), ("commit_step", step)] {
                writer.bulk(key.as_bytes());
                match value {
                    Some(value) => writer.integer(value as i64),
                    None => writer.null(),
                }
            }
            writer.bulk(b"pinned");
            writer.integer(i64::from(is_pinned));
            writer.bulk(b"spec");
            writer.bulk(&serde_json::to_vec(spec).unwrap_or_default());
        }
    });
    Ok(())
}

/// `COMMAND [COUNT|LIST|INFO name ...|GETKEYS name ...|DOCS]`
pub(super) fn command(call: &mut Call<'_>) -> Outcome {
    let what = call.arguments.get(1).map(<[u8]>::to_ascii_uppercase);
    match what.as_deref() {
        None => call.reply(|writer| {
            writer.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| describe(writer, command));
        }),
        Some(b"COUNT") => call.reply(|writer| writer.integer(COMMANDS.len() as i64)),
        Some(b"LIST") => call.reply(|writer| {
            writer.array(COMMANDS.len());
            COMMANDS.iter().for_each(|c| writer.bulk(c.name.to_ascii_lowercase().as_bytes()));
        }),
        Some(b"INFO") => {
            let names = call.arguments.from(2);
            call.reply(|writer| {
                writer.array(names.len());
                for name in names {
                    let is = |c: &&Command| c.name.as_bytes().eq_ignore_ascii_case(name);
                    match COMMANDS.iter().find(is) {
                        Some(command) => describe(writer, command),
                        None => writer.null(),
                    }
                }
            });
        }
        Some(b"GETKEYS") => {
            let (name, count) = (call.argument(2)?, call.arguments.len() - 2);
            let is = |c: &&Command| c.name.as_bytes().eq_ignore_ascii_case(name);
            let command = COMMANDS.iter().find(is);
            let command = command.ok_or_else(|| Refusal::new("Invalid command specified"))?;
            let places: Vec<usize> = command.places_of_keys(count).collect();
            if places.is_empty() {
                return Err(Refusal::new("The command has no key arguments"));
            }
            let asked = call.arguments;
            let names = places.iter().filter_map(|place| asked.get(2 + place));
            call.reply(|writer| {
                writer.array(places.len());
                names.for_each(|name| writer.bulk(name));
            });
        }
        Some(b"DOCS") => call.reply(|writer| writer.map(0)),
        Some(other) => {
            return Err(Refusal::new(format!("unknown subcommand COMMAND {}", shown(other))));
        }
    }
    Ok(())
}

/// Categories of users' rights, by flags: there is one user, who has all of them.
const CATEGORIES: [(&str, &str); 4] =
    [("readonly", "@read"), ("write", "@write"), ("admin", "@admin"), ("fast", "@fast")];

/// As Redis 7 does: behind the places of keys stand categories, and tips, key specifications and
/// subcommands, of which there are none.
fn describe(writer: &mut Writer<'_>, command: &Command) {
    writer.array(10);
    writer.bulk(command.name.to_ascii_lowercase().as_bytes());
    writer.integer(command.arity);
    writer.array(command.flags.len());
    command.flags.iter().for_each(|flag| writer.simple(flag));
    let (first, last, step) = command.keys;
    [first, last, step].into_iter().for_each(|place| writer.integer(place));
    let of_flags = CATEGORIES.iter().filter(|(flag, _)| command.flags.contains(flag));
    writer.array(of_flags.clone().count());
    of_flags.for_each(|(_, category)| writer.simple(category));
    (0..3).for_each(|_| writer.array(0));
}
