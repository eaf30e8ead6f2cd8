//! The commands: their names, how many arguments they take, and what runs them.

mod arguments;
mod cluster;
mod config;
mod connection;
mod create;
mod info;
mod moves;
mod multi;
mod reads;
mod report;
mod routing;
mod writes;

pub(crate) use multi::{Queue, Queued};

use crate::catalog::{Table, Tables};
use crate::cluster::View;
use crate::pulls::Pulls;
use crate::refusal::Refusal;
use crate::resp::{Arguments, Writer};
use crate::session::Session;
use crate::shared::Shared;
use crate::timer::{Job, Task};
use routing::Named;

/// The outcome of a command: a reply is in the output, or will be; or a refusal.
type Outcome = Result<(), Refusal>;

/// A command as `COMMAND` describes it.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// Number of arguments, the name included; negative if that is the least number.
    arity: i64,
    flags: &'static [&'static str],
    /// Places of the first key and the last, and how far keys are apart.
    keys: (i64, i64, i64),
    run: fn(&mut Call<'_>) -> Outcome,
}

impl Command {
    /// The places of the keys in a request of so many arguments.
    fn places_of_keys(&self, arguments: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { arguments as i64 + last } else { last };
        let places = if first > 0 { first as usize..(last + 1) as usize } else { 0..0 };
        places.step_by(step.max(1) as usize).filter(move |place| *place < arguments)
    }
}

const NO_KEYS: (i64, i64, i64) = (0, 0, 0);
/// The name of the table, with a bucket or without.
const TABLE: (i64, i64, i64) = (1, 1, 1);
const READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write", "denyoom"];
const ADMIN: &[&str] = &["admin"];
const OPEN: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"];
const PLAIN: &[&str] = &["loading", "stale", "fast"];

macro_rules! commands {
    ($($name:literal, $arity:literal, $flags:ident, $keys:expr, $run:path;)*) => {
        /// All commands.
        pub(crate) static COMMANDS: &[Command] = &[$(
            Command { name: $name, arity: $arity, flags: $flags, keys: $keys, run: $run },
        )*];
    };
}

commands! {
    "EMB.PULLB", 3, READ, TABLE, reads::pull_packed;
    "EMB.PULL", -3, READ, TABLE, reads::pull;
    "MGET", -2, READ, (1, -1, 1), reads::mget;
    "GET", 2, READ, (1, 1, 1), reads::get;
    "EMB.UPDATE", -4, WRITE, TABLE, writes::update;
    "EMB.PUSH", -4, WRITE, TABLE, writes::push;
    "SET", -3, WRITE, (1, 1, 1), writes::set;
    "MSET", -3, WRITE, (1, -1, 2), writes::mset;
    "EMB.LOOKAHEAD", 3, READ, TABLE, reads::lookahead;
    "EMB.HOT", 3, READ, TABLE, reads::hot;
    "EMB.TABLES", 1, PLAIN, NO_KEYS, info::tables;
    "EMB.CREATE", 3, ADMIN, NO_KEYS, create::create;
    "EMB.COMMIT", -1, ADMIN, NO_KEYS, writes::commit;
    "EMB.REFRESH", 1, ADMIN, NO_KEYS, moves::refresh;
    "EMB.SWITCH", 2, ADMIN, NO_KEYS, moves::switch;
    "EMB.CLUSTER", 2, ADMIN, NO_KEYS, cluster::reload;
    "PING", -1, PLAIN, NO_KEYS, connection::ping;
    "ECHO", 2, PLAIN, NO_KEYS, connection::echo;
    "HELLO", -1, OPEN, NO_KEYS, connection::hello;
    "AUTH", -2, OPEN, NO_KEYS, connection::auth;
    "SELECT", 2, PLAIN, NO_KEYS, connection::select;
    "INFO", -1, PLAIN, NO_KEYS, report::info;
    "ROLE", 1, PLAIN, NO_KEYS, connection::role;
    "COMMAND", -1, PLAIN, NO_KEYS, info::command;
    "CLIENT", -2, PLAIN, NO_KEYS, connection::client;
    "CONFIG", -2, ADMIN, NO_KEYS, config::config;
    "QUIT", -1, OPEN, NO_KEYS, connection::quit;
    "RESET", 1, OPEN, NO_KEYS, connection::reset;
    "MULTI", 1, PLAIN, NO_KEYS, multi::multi;
    "EXEC", 1, PLAIN, NO_KEYS, multi::exec;
    "DISCARD", 1, PLAIN, NO_KEYS, multi::discard;
    "WATCH", -2, PLAIN, NO_KEYS, multi::watch;
    "UNWATCH", 1, PLAIN, NO_KEYS, multi::watch;
    "CLUSTER", -2, PLAIN, NO_KEYS, cluster::cluster;
    "READONLY", 1, PLAIN, NO_KEYS, cluster::accept;
    "READWRITE", 1, PLAIN, NO_KEYS, cluster::accept;
    "ASKING", 1, PLAIN, NO_KEYS, cluster::accept;
}

/// One request, with all that its command may use.
pub(crate) struct Call<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) tables: &'a Tables,
    /// The map of the cluster, if the server is in one.
    pub(crate) cluster: Option<&'a View>,
    pub(crate) pulls: &'a mut Pulls,
    pub(crate) session: &'a mut Session,
    pub(crate) arguments: Arguments<'a>,
    /// Number of the thread, and of the connection within it.
    pub(crate) worker: usize,
    pub(crate) connection: usize,
    pub(crate) scratch: &'a mut Scratch,
}

/// Memory that commands use again.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) keys: Vec<u64>,
    pub(crate) values: Vec<f32>,
}

impl Scratch {
    /// Gives back what large requests have taken.
    pub(crate) fn shrink(&mut self) {
        self.keys.clear();
        self.values.clear();
        self.keys.shrink_to(1 << 16);
        self.values.shrink_to(1 << 20);
    }
}

impl<'a> Call<'a> {
    /// Runs the command, or queues it; what is wrong is the reply. Returns the number of one that
    /// has run.
    pub(crate) fn run(&mut self) -> Option<usize> {
        let name = self.arguments.get(0)?;
        // A web page can have a browser send these, with commands of its own behind them.
        if [&b"POST"[..], b"Host:"].iter().any(|word| name.eq_ignore_ascii_case(word)) {
            self.shared.metrics.malformed.inc();
            self.session.is_ending = true;
            return None;
        }
        let found = COMMANDS.iter().position(|c| c.name.as_bytes().eq_ignore_ascii_case(name));
        let is_queued = |number: usize| multi::is_queued(self, &COMMANDS[number]);
        let is_queued = found.is_some_and(is_queued);
        let outcome = match found {
            _ if !self.session.is_admitted && !found.is_some_and(is_open) => {
                Err(Refusal::coded("NOAUTH", "Authentication required: send AUTH and the password"))
            }
            Some(number) => self.run_command(&COMMANDS[number], is_queued),
            None => Err(Refusal::new(format!(
                "unknown command '{}'; COMMAND lists those that there are",
                shown(name)
            ))),
        };
        if let Err(refusal) = outcome {
            self.shared.metrics.refused.inc();
            if is_queued || found.is_none() {
                multi::fail(self);
            }
            self.reply(|writer| writer.error(refusal.code, &refusal.message));
        }
        found.filter(|_| !is_queued)
    }

    fn run_command(&mut self, command: &Command, is_queued: bool) -> Outcome {
        let count = self.arguments.len() as i64;
        if (command.arity > 0 && count != command.arity) || count < command.arity.abs() {
            return Err(Refusal::new(format!(
                "wrong number of arguments for '{}': {}, expected {}{}",
                command.name,
                count - 1,
                if command.arity < 0 { "at least " } else { "" },
                command.arity.abs() - 1
            )));
        }
        match is_queued {
            true => multi::queue(self, command),
            false => (command.run)(self),
        }
    }

    /// Writes a reply.
    fn reply(&mut self, write: impl FnOnce(&mut Writer<'_>)) {
        self.session.output.write(self.session.protocol, write);
    }

    /// The usual reply of what is done.
    fn done(&mut self) -> Outcome {
        self.reply(|writer| writer.simple("OK"));
        Ok(())
    }

    /// An argument.
    fn argument(&self, index: usize) -> Result<&'a [u8], Refusal> {
        self.arguments.get(index).ok_or_else(syntax)
    }

    /// The table that an argument names, and the bucket if it does.
    fn named(&self, index: usize) -> Result<Named<'a>, Refusal> {
        Named::find(self.tables, self.argument(index)?)
    }

    /// Hands a job to the thread that runs them. Its reply comes before those of later requests.
    fn begin_job(&mut self, task: Task) -> Outcome {
        let (worker, connection, id) = (self.worker, self.connection, self.session.id);
        self.shared.begin(Job { task, worker, connection, id })?;
        self.session.has_job = true;
        Ok(())
    }
}

fn is_open(number: usize) -> bool {
    COMMANDS[number].flags.contains(&"no_auth")
}

fn find_table<'t>(tables: &'t Tables, name: &[u8]) -> Result<&'t Table, Refusal> {
    tables.get(name).ok_or_else(|| {
        let (name, there) = (shown(name), tables.names_beside(name));
        Refusal::coded("NOTFOUND", format!("no table '{name}'; {there}"))
    })
}

fn syntax() -> Refusal {
    Refusal::new("syntax error")
}

/// Bytes of a request, for messages.
fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(64)].escape_ascii().to_string()
}
