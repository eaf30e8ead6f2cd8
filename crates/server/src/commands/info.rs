//! Commands that tell of the server, its commands and its tables.

use super::{COMMANDS, Call, Command, Outcome, shown};
use crate::refusal::Refusal;
use crate::resp::Writer;
use std::fmt::Write as _;
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

/// `INFO [section ...]`
pub(super) fn info(call: &mut Call<'_>) -> Outcome {
    let text = text_of(call)?;
    call.reply(|writer| writer.bulk(text.as_bytes()));
    Ok(())
}

fn text_of(call: &Call<'_>) -> Result<String, Refusal> {
    let (shared, mut text) = (call.shared, String::new());
    let stats = shared.store.stats()?;
    let wanted = |section: &str| {
        let mut asked = call.arguments.from(1);
        asked.len() == 0
            || asked.any(|name| {
                name.eq_ignore_ascii_case(section.as_bytes())
                    || [&b"all"[..], b"everything", b"default"]
                        .iter()
                        .any(|all| name.eq_ignore_ascii_case(all))
            })
    };
    let mut section = |name: &str, lines: &[(&str, String)]| {
        if wanted(name) {
            let _ = write!(text, "# {name}\r\n");
            lines.iter().for_each(|(key, value)| {
                let _ = write!(text, "{key}:{value}\r\n");
            });
            text.push_str("\r\n");
        }
    };
    let metrics = &shared.metrics;
    section(
        "Server",
        &[
            ("embedrock_version", env!("CARGO_PKG_VERSION").to_owned()),
            ("process_id", std::process::id().to_string()),
            ("tcp_port", shared.address.port().to_string()),
            ("uptime_in_seconds", shared.begun.elapsed().as_secs().to_string()),
            ("threads", shared.options.threads.to_string()),
            ("writable", u8::from(shared.is_writable()).to_string()),
            ("last_timer_failure", one_line(shared.timer_failure.lock().as_deref())),
        ],
    );
    section(
        "Clients",
        &[
            ("connected_clients", shared.connections.load(Ordering::Relaxed).to_string()),
            ("maxclients", shared.options.max_connections.to_string()),
        ],
    );
    section(
        "Memory",
        &[
            ("budget_bytes", stats.budget_bytes.to_string()),
            ("index_bytes", stats.memory.index_bytes.to_string()),
        ],
    );
    // Missing rows are counted behind the reading of them.
    let (missing, read) = (metrics.rows_missing.get(), metrics.rows_read.get());
    section(
        "Stats",
        &[
            ("total_connections_received", metrics.accepted.get().to_string()),
            ("rejected_connections", metrics.rejected.get().to_string()),
            ("total_error_replies", metrics.refused.get().to_string()),
            ("rows_read", read.to_string()),
            ("rows_missing", missing.to_string()),
            ("rows_put", metrics.rows_put.get().to_string()),
            ("rows_updated", metrics.rows_updated.get().to_string()),
            ("keyspace_hits", (read - missing).to_string()),
            ("keyspace_misses", missing.to_string()),
            ("cache_hits", stats.hits.to_string()),
            ("cache_misses", stats.misses.to_string()),
            ("cache_hit_rate", format!("{:.4}", stats.hit_rate)),
        ],
    );
    let plan = &shared.plan;
    section(
        "Gather",
        &[
            ("gather", shared.options.gather.name().to_owned()),
            ("gather_modes", plan.to_string()),
            ("lent_pulls", metrics.lent_pulls.get().to_string()),
            ("zero_copy_sends", metrics.zero_copy_sends.get().to_string()),
            ("zero_copy_copied", metrics.zero_copy_copied.get().to_string()),
        ],
    );
    section("Cluster", &[("cluster_enabled", u8::from(call.cluster.is_some()).to_string())]);
    section(
        "Store",
        &[
            ("path", stats.path.clone()),
            ("commit_step", stats.commits.step.to_string()),
            ("commit_sequence", stats.commits.sequence.to_string()),
            ("pinned", u8::from(shared.is_pinned.load(Ordering::Relaxed)).to_string()),
            ("tables", stats.tables.len().to_string()),
            ("disk_bytes", stats.disk_bytes.to_string()),
        ],
    );
    Ok(text)
}

/// A text as the value of a line.
fn one_line(text: Option<&str>) -> String {
    text.unwrap_or_default().replace(['\r', '\n'], " ")
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

/// `CONFIG GET name ...`: what benchmarks and monitors ask for.
pub(super) fn config(call: &mut Call<'_>) -> Outcome {
    if !call.argument(1)?.eq_ignore_ascii_case(b"GET") {
        return Err(Refusal::new(format!(
            "CONFIG {} is not there: a server is configured when it is started, and CONFIG GET \
             tells how",
            shown(&call.argument(1)?.to_ascii_uppercase())
        )));
    }
    let options = &call.shared.options;
    let seconds = |time: Option<std::time::Duration>| time.map_or(0, |t| t.as_secs()).to_string();
    let all = [
        ("save", String::new()),
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", options.max_connections.to_string()),
        ("timeout", seconds(options.idle)),
        ("max-keys", options.max_keys.to_string()),
        ("max-request-bytes", options.max_request_bytes.to_string()),
        ("max-reply-bytes", options.max_reply_bytes.to_string()),
        ("gather", options.gather.name().to_owned()),
        ("io-threads", options.threads.to_string()),
    ];
    let names = call.arguments.from(2);
    let asked: Vec<_> = all
        .iter()
        .filter(|(key, _)| {
            names.len() > 0
                && call
                    .arguments
                    .from(2)
                    .any(|n| n == b"*" || n.eq_ignore_ascii_case(key.as_bytes()))
        })
        .collect();
    call.reply(|writer| {
        writer.map(asked.len());
        for (key, value) in asked {
            writer.bulk(key.as_bytes());
            writer.bulk(value.as_bytes());
        }
    });
    Ok(())
}
