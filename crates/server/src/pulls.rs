//! Rows that requests ask for, of all connections in one turn of a loop.
//!
//! Keys are copied out of the requests; nothing else refers to a request here. One call of the
//! engine reads all rows of the turn into the buffers that go to the sockets, and another one lends
//! those that are to be sent from where they lie. A failure is one of the requests that it is
//! about, and of no other.

use crate::catalog::Table;
use crate::gather::{Mode, Plan, Views};
use crate::output::{Output, Place};
use crate::refusal::Refusal;
use crate::resp::{Protocol, Writer};
use embedrock_core::{GetBatch, Result, RowViews, Store, TableId};
use std::collections::VecDeque;
use std::ops::Range;

/// Version of the layout of `EMB.PULL`, in the lower half of the header's first word. The upper
/// half is the dtype of the rows: 0, float32.
pub(crate) const LAYOUT_VERSION: u32 = 1;
/// Bytes of a header without missing positions.
pub(crate) const HEADER_BYTES: usize = 12;
/// Most bytes of idle row buffers, and most of them.
const IDLE_BYTES: usize = 16 << 20;
const IDLE_BUFFERS: usize = 256;
/// Requests and parts whose memory is kept for the next turn.
const KEPT: usize = 1 << 12;
/// Pulls of more keys are copied: what one call of the kernel takes is a small part of them.
const LENT_KEYS_MAX: usize = 4096;

/// Parts that are lent in a turn; others are copied. A region lends 512 batches to all threads.
const LENT_PARTS_MAX: usize = 64;

/// The part and place of a key that its table cannot have.
pub(crate) const NO_ROW: (u32, u32) = (u32::MAX, 0);

/// The form of a reply with rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A header, then all rows: `EMB.PULL`.
    Pull,
    /// The bytes of one row, or null: `GET`.
    Value,
    /// An array of them: `MGET`.
    Values,
}

/// Keys of one table, and their rows.
#[derive(Debug)]
struct Part {
    table: TableId,
    dim: usize,
    /// Whether all keys are known to be written.
    is_full: bool,
    /// Whether the storage lends rows.
    lends: bool,
    keys: Range<usize>,
    /// The mode in which the rows are sent; unless copied, they are lent.
    mode: Mode,
    /// The first values are the rows, if copied.
    rows: Vec<f32>,
    views: Option<RowViews>,
}

impl Part {
    fn values(&self) -> usize {
        self.keys.len() * self.dim
    }

    fn is_copied(&self) -> bool {
        self.mode == Mode::Copy
    }
}

/// The keys of one request.
#[derive(Debug)]
struct Request {
    connection: usize,
    place: Place,
    protocol: Protocol,
    form: Form,
    parts: Range<usize>,
    /// Of `MGET`: for each key its part and its place in it.
    order: Vec<(u32, u32)>,
    refusal: Option<Refusal>,
}

/// Requests that wait for their rows, or for their replies to be put out.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    keys: Vec<u64>,
    /// Whether each key was written.
    found: Vec<bool>,
    parts: Vec<Part>,
    requests: Vec<Request>,
    /// Requests whose rows were read.
    read: usize,
    parts_read: usize,
    bytes: usize,
    idle: VecDeque<Vec<f32>>,
    idle_bytes: usize,
}

/// The delivered reply.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivered {
    /// Keys that were looked for, and those of them without a row.
    pub(crate) looked: u64,
    pub(crate) missing: u64,
    /// Requests that failed.
    pub(crate) failed: u64,
    /// Requests whose rows are lent.
    pub(crate) lent: u64,
}

/// A request that is being put together.
pub(crate) struct Asking<'a> {
    pulls: &'a mut Pulls,
    keys: usize,
    parts: usize,
}

impl Asking<'_> {
    /// The keys of the next part, to be appended.
    pub(crate) fn keys(&mut self) -> &mut Vec<u64> {
        &mut self.pulls.keys
    }

    /// Number of keys behind the last part.
    pub(crate) fn count(&self) -> usize {
        self.pulls.keys.len() - self.begin()
    }

    /// Keys behind the last part are of this table.
    pub(crate) fn end_part(&mut self, table: &Table) {
        let keys = self.begin()..self.pulls.keys.len();
        self.pulls.parts.push(Part {
            table: table.id,
            dim: table.dim,
            is_full: table.is_full,
            lends: table.lends,
            keys,
            mode: Mode::Copy,
            rows: Vec::new(),
            views: None,
        });
    }

    /// The keys behind the last part.
    pub(crate) fn added(&self) -> &[u64] {
        &self.pulls.keys[self.begin()..]
    }

    fn begin(&self) -> usize {
        let parts = &self.pulls.parts[self.parts..];
        parts.last().map_or(self.keys, |part| part.keys.end)
    }

    /// Takes the request back.
    pub(crate) fn cancel(self) {
        self.pulls.keys.truncate(self.keys);
        self.pulls.parts.truncate(self.parts);
    }

    /// Asks for the rows; the reply will come to a place in the output. Returns its bytes, about.
    pub(crate) fn ask(
        self,
        connection: usize,
        form: Form,
        order: Vec<(u32, u32)>,
        output: &mut Output,
        protocol: Protocol,
    ) -> usize {
        let pulls = self.pulls;
        let place = match form {
            Form::Pull => output.keep_rows(),
            Form::Value | Form::Values => output.keep_text(),
        };
        let parts = self.parts..pulls.parts.len();
        let values: usize = pulls.parts[parts.clone()].iter().map(Part::values).sum();
        let bytes = values * size_of::<f32>();
        // Small rows are the smaller part of what a request takes until it is replied.
        pulls.bytes += bytes + parts.len() * size_of::<Part>() + size_of::<Request>();
        let refusal = None;
        pulls.requests.push(Request { connection, place, protocol, form, parts, order, refusal });
        bytes
    }
}

impl Pulls {
    /// Begins a request.
    pub(crate) fn begin(&mut self) -> Asking<'_> {
        let (keys, parts) = (self.keys.len(), self.parts.len());
        Asking { pulls: self, keys, parts }
    }

    /// True when rows are asked for that were not read.
    pub(crate) fn is_waiting(&self) -> bool {
        self.read < self.requests.len()
    }

    /// Whether a connection has asked for rows that were not read.
    pub(crate) fn is_waited_for(&self, connection: usize) -> bool {
        self.requests[self.read..].iter().any(|request| request.connection == connection)
    }

    /// Memory of what was asked for in this turn: rows, and requests until they are replied.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads what is asked for, with one call of the engine, and has rows lent with another where
    /// the plan says so: then what follows at once is [`deliver`](Self::deliver), and to send it.
    /// Returns how many rows there were.
    pub(crate) fn read(&mut self, store: &Store, plan: Option<&Plan>) -> u64 {
        let first = self.parts_read;
        self.found.resize(self.keys.len(), false);
        if let Some(plan) = plan {
            self.choose(plan);
        }
        self.copy(store, Part::is_copied);
        // Last, because a thread that has rows lent must not wait for a writer.
        if !self.lend(store) {
            let is_refused = |part: &Part| !part.is_copied();
            self.copy(store, is_refused);
            self.parts[first..].iter_mut().for_each(|part| part.mode = Mode::Copy);
        }
        let rows = self.parts[first..].iter().map(|part| part.keys.len() as u64).sum();
        (self.read, self.parts_read) = (self.requests.len(), self.parts.len());
        rows
    }

    /// Chooses how rows that can be lent are sent.
    fn choose(&mut self, plan: &Plan) {
        let pulls = self.requests[self.read..].iter().filter(|r| r.form == Form::Pull);
        let mut lent = 0;
        for request in pulls {
            for part in &mut self.parts[request.parts.clone()] {
                let can_be = part.lends && (1..=LENT_KEYS_MAX).contains(&part.keys.len());
                if can_be && lent < LENT_PARTS_MAX {
                    part.mode = plan.of_views(part.dim * size_of::<f32>());
                    lent += usize::from(!part.is_copied());
                }
            }
        }
    }

    /// Reads the rows of some parts into buffers.
    fn copy(&mut self, store: &Store, is_read: fn(&Part) -> bool) {
        let first = self.parts_read;
        for index in first..self.parts.len() {
            if is_read(&self.parts[index]) {
                let values = self.parts[index].values();
                self.parts[index].rows = self.take_buffer(values);
            }
        }
        let (keys, found) = (&self.keys, &mut self.found);
        if read(store, keys, found, &mut self.parts[first..], is_read).is_err() {
            // Reading each by itself shows which one is at fault.
            for request in &mut self.requests[self.read..] {
                let parts = &mut self.parts[request.parts.clone()];
                if parts.iter().any(is_read) {
                    let read = read(store, keys, found, parts, is_read);
                    request.refusal = read.err().map(Refusal::from);
                }
            }
        }
    }

    /// Has rows lent that are not copied. False where they have to be.
    fn lend(&mut self, store: &Store) -> bool {
        let parts = &mut self.parts[self.parts_read..];
        let lent = parts.iter().filter(|part| !part.is_copied());
        let batches = lent.map(|part| (part.table, &self.keys[part.keys.clone()]));
        let batches: Vec<(TableId, &[u64])> = batches.collect();
        if batches.is_empty() {
            return true;
        }
        // Errors are reported when they are read.
        let Ok(Some(views)) = store.view(&batches) else { return false };
        for (part, views) in parts.iter_mut().filter(|part| !part.is_copied()).zip(views) {
            let found = &mut self.found[part.keys.clone()];
            found.fill(true);
            views.missing().iter().for_each(|at| found[*at as usize] = false);
            part.views = Some(views);
        }
        true
    }

    /// Writes each reply where `deliver` finds its connection's output, and begins a new turn. All
    /// was read.
    pub(crate) fn deliver(
        &mut self,
        plan: &Plan,
        mut deliver: impl FnMut(usize, &mut dyn FnMut(&mut Output)),
    ) -> Delivered {
        let mut delivered = Delivered::default();
        let mut requests = std::mem::take(&mut self.requests);
        for request in requests.drain(..) {
            delivered.failed += u64::from(request.refusal.is_some());
            let parts = &self.parts[request.parts.clone()];
            if request.refusal.is_none() {
                delivered.looked += parts.iter().map(|part| part.keys.len() as u64).sum::<u64>();
            }
            delivered.lent += u64::from(parts.iter().any(|part| part.views.is_some()));
            deliver(request.connection, &mut |output| {
                delivered.missing += self.reply(&request, plan, output)
            });
        }
        requests.shrink_to(KEPT);
        self.requests = requests;
        let mut parts = std::mem::take(&mut self.parts);
        parts.drain(..).for_each(|part| self.give_buffer(part.rows));
        parts.shrink_to(KEPT);
        self.parts = parts;
        self.keys.clear();
        self.found.clear();
        self.keys.shrink_to(1 << 20);
        self.found.shrink_to(1 << 20);
        (self.read, self.parts_read, self.bytes) = (0, 0, 0);
        delivered
    }

    /// Writes a reply. Returns how many keys have no row.
    fn reply(&mut self, request: &Request, plan: &Plan, output: &mut Output) -> u64 {
        let (place, protocol) = (request.place, request.protocol);
        if let Some(refusal) = &request.refusal {
            output.fill_text(place, protocol, |bytes, protocol| {
                let mut writer = Writer::new(bytes, protocol);
                match request.form {
                    // Its end of line is there already.
                    Form::Pull => writer.error_without_end(refusal.code, &refusal.message),
                    Form::Value | Form::Values => writer.error(refusal.code, &refusal.message),
                }
            });
            return 0;
        }
        let parts = &mut self.parts[request.parts.clone()];
        let keys = parts.iter().flat_map(|part| &self.found[part.keys.clone()]);
        let missing = keys.filter(|found| !**found).count();
        match (request.form, parts) {
            (Form::Pull, [part]) => {
                let (rows, len) = (std::mem::take(&mut part.rows), part.values());
                let views = part.views.take();
                let found = &self.found[part.keys.clone()];
                output.fill_text(place, protocol, |bytes, protocol| {
                    let length = HEADER_BYTES + missing * 4 + len * size_of::<f32>();
                    Writer::new(bytes, protocol).bulk_header(length);
                    for word in [LAYOUT_VERSION, found.len() as u32, missing as u32] {
                        bytes.extend(word.to_le_bytes());
                    }
                    for (position, _) in found.iter().enumerate().filter(|(_, found)| !**found) {
                        bytes.extend((position as u32).to_le_bytes());
                    }
                });
                if let Some(mut views) = views {
                    let (size, missing) = ((views.len(), views.row_bytes()), views.take_missing());
                    let is_zero_copy = part.mode == Mode::ZeroCopy;
                    let views = Views::new(Box::new(views), size, missing, is_zero_copy);
                    output.fill_views(place, views);
                } else {
                    let is_zero_copy = plan.of_reply(len * size_of::<f32>());
                    output.fill_rows(place, rows, len, is_zero_copy);
                }
            }
            (form, parts) => {
                let found = &self.found;
                output.fill_text(place, protocol, |bytes, protocol| {
                    let mut values = 0;
                    for part in &*parts {
                        let found = &found[part.keys.clone()];
                        values += found.iter().filter(|found| **found).count() * part.dim;
                    }
                    let keys = if form == Form::Values { request.order.len() } else { 1 };
                    bytes.reserve(values * size_of::<f32>() + keys * 16 + 16);
                    let mut writer = Writer::new(bytes, protocol);
                    if form == Form::Values {
                        writer.array(keys);
                    }
                    let mut value = |part: Option<&Part>, index: usize| match part {
                        Some(part) if found[part.keys.start + index] => {
                            let row = &part.rows[index * part.dim..][..part.dim];
                            writer.bulk(bytemuck::cast_slice(row));
                        }
                        _ => writer.null(),
                    };
                    match (form, parts) {
                        (Form::Values, parts) => request.order.iter().for_each(|place| {
                            let part = parts.get(place.0 as usize);
                            value(part, place.1 as usize);
                        }),
                        (_, parts) => value(parts.first(), 0),
                    }
                });
            }
        }
        missing as u64
    }

    /// Takes the memory of rows back that went out. The memory that was idle longest makes room.
    pub(crate) fn give_buffer(&mut self, rows: Vec<f32>) {
        let bytes = |rows: &Vec<f32>| rows.capacity() * size_of::<f32>();
        if bytes(&rows) == 0 || bytes(&rows) > IDLE_BYTES {
            return;
        }
        self.idle_bytes += bytes(&rows);
        self.idle.push_back(rows);
        while self.idle_bytes > IDLE_BYTES || self.idle.len() > IDLE_BUFFERS {
            let Some(oldest) = self.idle.pop_front() else { return };
            self.idle_bytes -= bytes(&oldest);
        }
    }

    /// Gives up the memory that is kept for rows to come.
    pub(crate) fn release_idle(&mut self) {
        self.idle = VecDeque::new();
        self.idle_bytes = 0;
    }

    /// Memory for so many values, which hold anything. It is not much larger than that: a client
    /// that takes small replies late must not hold the memory of large ones.
    fn take_buffer(&mut self, values: usize) -> Vec<f32> {
        let fits = |rows: &Vec<f32>| (values..=values * 4 + 1024).contains(&rows.len());
        let Some(rows) = self.idle.iter().rposition(fits).and_then(|at| self.idle.remove(at))
        else {
            return vec![0.0; values];
        };
        self.idle_bytes -= rows.capacity() * size_of::<f32>();
        rows
    }
}

/// Reads the rows of some parts, and which of their keys were written.
fn read(
    store: &Store,
    keys: &[u64],
    found: &mut [bool],
    parts: &mut [Part],
    is_read: fn(&Part) -> bool,
) -> Result<()> {
    let mut parts: Vec<&mut Part> = parts.iter_mut().filter(|part| is_read(part)).collect();
    if parts.is_empty() {
        return Ok(());
    }
    // A key that another client writes between the two steps is reported as missing, with its row.
    // A reader sees no writes, and rows that it has read are in memory when it looks again.
    let is_reader = store.options().read_only;
    if !is_reader {
        look(store, keys, found, &parts)?;
    }
    let mut batches = Vec::with_capacity(parts.len());
    for part in &mut parts {
        let (table, keys, len) = (part.table, &keys[part.keys.clone()], part.values());
        let values = (&mut part.rows[..len]).into();
        batches.push(GetBatch { table, keys, values, state: None });
    }
    store.get(&mut batches)?;
    drop(batches);
    if is_reader {
        look(store, keys, found, &parts)?;
    }
    Ok(())
}

/// Finds which keys were written, of each table at once.
fn look(store: &Store, keys: &[u64], found: &mut [bool], parts: &[&mut Part]) -> Result<()> {
    for part in parts.iter().filter(|part| part.is_full) {
        found[part.keys.clone()].fill(true);
    }
    if let [part] = parts
        && !part.is_full
    {
        return store.contains(part.table, &keys[part.keys.clone()], &mut found[part.keys.clone()]);
    }
    let parts = || parts.iter().filter(|part| !part.is_full);
    let mut tables: Vec<TableId> = parts().map(|part| part.table).collect();
    tables.sort_unstable();
    tables.dedup();
    let (mut of_table, mut answers) = (Vec::new(), Vec::new());
    for table in tables {
        let parts = || parts().filter(|part| part.table == table);
        of_table.clear();
        parts().for_each(|part| of_table.extend(&keys[part.keys.clone()]));
        answers.clear();
        answers.resize(of_table.len(), false);
        store.contains(table, &of_table, &mut answers)?;
        let mut begin = 0;
        for part in parts() {
            let end = begin + part.keys.len();
            found[part.keys.clone()].copy_from_slice(&answers[begin..end]);
            begin = end;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use embedrock_core::StorageKind;
    use embedrock_core::config::{Memory, StoreOptions, TableSpec};
    use embedrock_core::init::Initializer;
    use embedrock_core::optimizer::{OptimizerKind, OptimizerSpec};
    use embedrock_core::row::{Dtype, RoundingMode};

    #[test]
    fn idle_buffers_are_few_and_are_used_for_rows_of_about_their_size() {
        let mut pulls = Pulls::default();
        pulls.give_buffer(vec![0.0; 1 << 20]);
        assert!(pulls.take_buffer(10).len() < 2000);
        assert_eq!(pulls.take_buffer(1 << 19).len(), 1 << 20);
        assert_eq!((pulls.idle.len(), pulls.idle_bytes), (0, 0));
        (0..1000).for_each(|_| pulls.give_buffer(vec![0.0; 1000]));
        assert_eq!(pulls.idle.len(), IDLE_BUFFERS);
        (0..20).for_each(|_| pulls.give_buffer(vec![0.0; 1 << 20]));
        assert!(pulls.idle_bytes <= IDLE_BYTES && pulls.idle.len() == 4);
        pulls.give_buffer(vec![0.0; IDLE_BYTES]);
        assert!(pulls.idle_bytes <= IDLE_BYTES);
    }

    #[test]
    fn a_missing_row_takes_no_memory_of_a_row() {
        let (mut pulls, mut output) = (Pulls::default(), Output::default());
        let folder = tempfile::tempdir().unwrap();
        let options = StoreOptions::new(Memory::Bytes(16 << 20));
        let store = Store::open(folder.path().join("store"), options).unwrap();
        let (dim, keys) = (1 << 12, 0..1);
        let spec = TableSpec {
            name: "user".into(),
            first_name: None,
            embedding_dim: dim,
            num_embeddings: None,
            expected_rows: None,
            dtype: Dtype::Float32,
            rounding: RoundingMode::default(),
            storage: StorageKind::Log,
            capacity: None,
            optimizer: OptimizerSpec {
                kind: OptimizerKind::Sgd,
                bias_correction: Default::default(),
                initial_accumulator: 0.0,
            },
            initializer: Initializer::Constant(0.5),
        };
        let table = store.table(&spec).unwrap();
        pulls.keys.push(7);
        pulls.found.push(false);
        pulls.parts.push(Part {
            table,
            dim,
            is_full: false,
            lends: false,
            keys,
            mode: Mode::Copy,
            rows: vec![0.0; dim],
            views: None,
        });
        let request = Request {
            connection: 0,
            place: output.keep_text(),
            protocol: Protocol::Resp2,
            form: Form::Value,
            parts: 0..1,
            order: Vec::new(),
            refusal: None,
        };
        assert_eq!(pulls.reply(&request, &Plan::fixed(Mode::Copy), &mut output), 1);
        assert_eq!(output.queued(), 5);
        assert!(output.memory_bytes() < 500, "{} bytes", output.memory_bytes());
    }
}
