//! Optimizers: steps on rows that are near, without clipping and weight decay but AdamW's own.

use super::TIMES;
use criterion::{BenchmarkId, Criterion, Throughput};
use embedrock_core::hash::mix;
use embedrock_core::optimizer::{OptimizerKind, OptimizerSpec};

const KINDS: [OptimizerKind; 8] = [
    OptimizerKind::Sgd,
    OptimizerKind::Momentum,
    OptimizerKind::Adagrad,
    OptimizerKind::RowWiseAdagrad,
    OptimizerKind::Adam,
    OptimizerKind::AdamW,
    OptimizerKind::RowWiseAdam,
    OptimizerKind::Ftrl,
];

pub(super) fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("optimizer");
    group.throughput(Throughput::Elements(TIMES as u64));
    for kind in KINDS {
        for dim in [32, 128] {
            let spec = OptimizerSpec::new(kind);
            let prepared = spec.prepare(&kind.default_hyper(), 100, dim);
            let random = |i: usize, salt| (mix(i as u64, salt) >> 40) as f32 / 1e7 - 0.8;
            let gradients: Vec<f32> = (0..TIMES * dim).map(|i| random(i, 1)).collect();
            // As they lie in the cache: values, then state.
            let row_words = dim + spec.state_words(dim);
            let mut rows: Vec<f32> = (0..TIMES * row_words).map(|i| random(i, 2)).collect();
            for row in rows.chunks_exact_mut(row_words) {
                spec.init_state(dim, &mut row[dim..]);
            }
            let mut step = || {
                let both = rows.chunks_exact_mut(row_words).zip(gradients.chunks_exact(dim));
                for (row, gradient) in both {
                    let (values, state) = row.split_at_mut(dim);
                    prepared.apply(values, state, gradient);
                }
            };
            step();
            group.bench_function(BenchmarkId::new(kind.name(), dim), |bencher| {
                bencher.iter(&mut step);
            });
            let moved = rows[0] != random(0, 2);
            assert!(moved && rows.iter().all(|word| word.is_finite()), "{}", kind.name());
        }
    }
    group.finish();
}
