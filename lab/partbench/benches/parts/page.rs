//! The page codec: a page filled and sealed, a page verified and one row found in it.

use super::{Draws, TIMES};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use embedrock_core::laboratory::PageLayout;
use embedrock_core::row::{Dtype, RowLayout};
use std::hint::black_box;

const DIM: usize = 32;
const FILE: &str = "rows-0";

pub(super) fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("page");
    for dtype in [Dtype::Float32, Dtype::Bfloat16] {
        for page_bytes in [512, 4096] {
            let codec = Codec::new(dtype, page_bytes);
            let id = |what: &str| BenchmarkId::new(format!("{what}/{}", dtype.name()), page_bytes);
            let pages = codec.pages();
            let page_words = page_bytes / 4;
            let mut one = vec![0.0; page_words];
            group.throughput(Throughput::Bytes((TIMES * page_bytes) as u64));
            group.bench_function(id("write"), |bencher| {
                let write = || (0..TIMES as u32).for_each(|n| codec.write(&mut one, black_box(n)));
                bencher.iter(write);
            });
            let mut draws = Draws::new(codec.layout.rows_per_page as u64);
            group.bench_function(id("read"), |bencher| {
                let mut values = [0.0; DIM];
                let read = |slots: &mut Vec<u64>| {
                    let pages = pages.chunks_exact(page_words).zip(slots.iter());
                    for (number, (page, slot)) in (0..).zip(pages) {
                        codec.read(page, number, *slot as usize, &mut values);
                        black_box(&values);
                    }
                };
                bencher.iter_batched_ref(|| draws.next(), read, BatchSize::SmallInput);
            });
        }
    }
    group.finish();
}

/// Pages of rows with one word of state.
struct Codec {
    row: RowLayout,
    layout: PageLayout,
}

impl Codec {
    fn new(dtype: Dtype, page_bytes: usize) -> Self {
        let row = RowLayout::new(dtype, DIM, 1).expect("a row");
        let layout = PageLayout::new(page_bytes, row.row_bytes(), 0, 7).expect("a page");
        Self { row, layout }
    }

    fn pages(&self) -> Vec<f32> {
        let page_words = self.layout.page_bytes / 4;
        let mut pages = vec![0.0; TIMES * page_words];
        for (number, page) in (0..).zip(pages.chunks_exact_mut(page_words)) {
            self.write(page, number);
        }
        pages
    }

    fn key(&self, number: u32, slot: usize) -> u64 {
        u64::from(number) * self.layout.rows_per_page as u64 + slot as u64
    }

    /// Fills a page with rows of its own and seals it.
    fn write(&self, page: &mut [f32], number: u32) {
        let page: &mut [u8] = bytemuck::cast_slice_mut(page);
        let mut words = [0.0; DIM + 1];
        let words = &mut words[..self.row.row_words()];
        for slot in 0..self.layout.rows_per_page {
            self.row.write_values(words, &[number as f32; DIM]);
            self.layout.put(page, slot, 0, self.key(number, slot), words);
        }
        self.layout.seal(page, number, self.layout.rows_per_page, 1);
    }

    /// Verifies a page and reads the values of one row, whose key it must be.
    fn read(&self, page: &[f32], number: u32, slot: usize, values: &mut [f32]) {
        let page: &[u8] = bytemuck::cast_slice(page);
        let rows = self.layout.verify(page, number, FILE).expect("an undamaged page");
        assert!(slot < rows && self.layout.entry(page, slot) == (0, self.key(number, slot)));
        self.row.read_values(self.layout.row(page, slot), values);
    }
}
