//! The cost of the modes of sending: 500 rows of a region over loopback TCP, rows of 16 to 2,048
//! values. All rows that arrive are compared in a pass of its own before times are taken.
//!
//! `cargo run --release -p embedrock-server --example gather [SECONDS FOR EACH SIZE]`
#![expect(clippy::print_stdout, reason = "the figures go to standard output")]

use embedrock_pmem::{Geometry, Mapped, RowViews, Rows};
use embedrock_server::gather::{self, Cost, Costs, Pull, RowSource, measure};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const KEYS: usize = 500;
const DIMS: [usize; 8] = [16, 32, 64, 128, 256, 512, 1024, 2048];
/// Bytes of all rows: more than the caches of most processors.
const BYTES: usize = 256 << 20;
const BATCHES: usize = 64;

/// Rows of a region, as a server sends them.
struct Region(Arc<Rows<Mapped>>);

struct Lent(RowViews<Mapped>);

impl gather::RowViews for Lent {
    fn row(&self, position: usize) -> Option<&[AtomicU64]> {
        self.0.row(position)
    }
}

impl RowSource for Region {
    fn views(&self, keys: &[u64]) -> io::Result<Option<Box<dyn gather::RowViews>>> {
        let views = self.0.views(keys).map_err(io::Error::other)?;
        Ok(views.map(|views| Box::new(Lent(views)) as _))
    }

    fn copy(&self, keys: &[u64], rows: &mut [u8]) -> io::Result<()> {
        let found = self.0.get(keys, rows, &mut vec![false; keys.len()]);
        match found.map_err(io::Error::other)? {
            count if count == keys.len() => Ok(()),
            count => Err(io::Error::other(format!("{count} rows of {} keys", keys.len()))),
        }
    }
}

/// A value that depends on key and place.
fn value(key: u64, at: usize) -> f32 {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f32 + at as f32
}

fn row(key: u64, dim: usize) -> impl Iterator<Item = u8> {
    (0..dim).flat_map(move |at| value(key, at).to_le_bytes())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: f64 = std::env::args().nth(1).map_or(Ok(4.0), |text| text.parse())?;
    println!("microseconds of processor time of the serving thread for a pull of {KEYS} rows,");
    println!("in brackets from request to last byte; medians of turns");
    println!(
        "{:>5} {:>15} {:>15} {:>15} {:>15}",
        "dim", "copy", "lent reply", "vectored", "zerocopy"
    );
    for dim in DIMS {
        let costs = costs(dim, Duration::from_secs_f64(seconds))?;
        let Costs { copy, lent_reply, vectored, zero_copy } = costs;
        let cells = [Some(copy), lent_reply, vectored, zero_copy].map(cell);
        println!("{dim:>5} {}", cells.join(" "));
        if let Some(cost) = zero_copy
            && cost.copied > 0.0
        {
            println!("{:>5} the kernel copied {:.0} % of the sends", "", cost.copied * 100.0);
        }
    }
    Ok(())
}

fn cell(cost: Option<Cost>) -> String {
    let text = cost.map_or("none".to_owned(), |cost| {
        format!("{:.1} ({:.0})", cost.cpu_seconds * 1e6, cost.seconds * 1e6)
    });
    format!("{text:>15}")
}

fn costs(dim: usize, patience: Duration) -> Result<Costs, Box<dyn std::error::Error>> {
    let row_bytes = dim * size_of::<f32>();
    let count = (BYTES / row_bytes) as u64;
    let geometry = Geometry::new(count, row_bytes)?;
    let rows = Rows::format(Mapped::anonymous(geometry.bytes())?, geometry)?;
    let keys: Vec<u64> = (0..count).collect();
    for keys in keys.chunks(4096) {
        let bytes: Vec<u8> = keys.iter().flat_map(|key| row(*key, dim)).collect();
        rows.put(keys, &bytes)?;
    }
    let mut state = 88_172_645_463_325_252u64;
    let mut next = || {
        // Xorshift, from Marsaglia's paper.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % count
    };
    let batches: Vec<Vec<u64>> =
        (0..BATCHES).map(|_| (0..KEYS).map(|_| next()).collect()).collect();
    let (checked, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let check = |keys: &[u64], bytes: &[u8]| {
        for (key, found) in keys.iter().zip(bytes.chunks_exact(row_bytes)) {
            let is_right = row(*key, dim).eq(found.iter().copied());
            wrong.fetch_add(usize::from(!is_right), Ordering::Relaxed);
            checked.fetch_add(1, Ordering::Relaxed);
        }
    };
    let source = Region(Arc::new(rows));
    let mut pull = Pull {
        source: &source,
        row_bytes,
        batches: &batches,
        has_views: true,
        patience: Duration::ZERO,
        check: Some(&check),
    };
    measure(&pull)?;
    let (checked, wrong) = (checked.load(Ordering::Relaxed), wrong.load(Ordering::Relaxed));
    if wrong > 0 || checked == 0 {
        return Err(format!("{wrong} of {checked} rows of {dim} values are wrong").into());
    }
    (pull.check, pull.patience) = (None, patience);
    Ok(measure(&pull)?)
}
