//! The optimizers of the engine: the effect of one update on one row.
//!
//! Owns the arithmetic and the layout of the state words, nothing else: no keys, no batches, no
//! I/O. Gradients of equal keys are summed before they come here. Invariants:
//!
//! * The same row, gradient, [`Hyper`] and step give the same bits on every machine. Operations are
//!   IEEE 754 binary32 in the order written, each rounded once: no contraction to fused
//!   multiply-add, no approximate reciprocal or root, no sum whose order follows the vector width.
//! * The order of operations and roundings is that of torch 2.15 on CPU for `SGD`, `Adagrad`
//!   (sparse gradients, `lr_decay=0`), `SparseAdam` and `AdamW`. The bits are too, but for two
//!   liberties of torch. It takes square roots from a vector library, off by one unit in the last
//!   place for 0.7 % of inputs; ours are correctly rounded (Adagrad, Adam, AdamW). And from AVX2 on
//!   it fuses `add_(x, alpha=a)` to one rounding (SGD, Adagrad, AdamW, weight decay);
//!   `ATEN_CPU_CAPABILITY=default` turns that off. So SGD equals torch bit for bit under that
//!   setting, the others all but for the roots. Row-wise Adagrad and Adam and FTRL have no
//!   counterpart in torch.
//! * Hyperparameters are f64, as Python's floats are; each factor is formed in f64 and rounded to
//!   f32 once.
//!
//! State words, after the values: none and SGD keep none; momentum `[dim buffer]`; Adagrad `[dim
//! sums]`; row-wise Adagrad `[1 sum]`; Adam and AdamW `[dim first moments][dim second moments]`,
//! row-wise Adam `[dim first moments][1 second moment]`, then `[1 step count]` (the bits of a u32)
//! with bias correction by row; FTRL `[dim accumulators][dim linear terms]`.

mod adagrad;
mod adam;
mod ftrl;
mod hyper;
mod sgd;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, bail};

pub use hyper::Hyper;

/// The optimizer of a table. Table records carry its name; the numeric codes are reserved for
/// records that carry numbers (`docs/formats/journal.md`).
///
/// Codes from 9 are reserved for optimizers of later versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum OptimizerKind {
    /// No optimizer: rows change by put and modify only.
    None = 0,
    /// `w += -lr * g`.
    Sgd = 1,
    /// Element-wise Adagrad.
    Adagrad = 2,
    /// Adagrad with one accumulator per row.
    #[default]
    #[serde(rename = "rowwise_adagrad")]
    RowWiseAdagrad = 3,
    /// Adam on touched rows.
    Adam = 4,
    /// SGD with a buffer of past gradients.
    Momentum = 5,
    /// Adam with decoupled weight decay, on touched rows.
    #[serde(rename = "adamw")]
    AdamW = 6,
    /// FTRL-Proximal.
    Ftrl = 7,
    /// Adam with one second moment per row.
    #[serde(rename = "rowwise_adam")]
    RowWiseAdam = 8,
}

impl OptimizerKind {
    const ALL: [Self; 9] = [
        Self::None,
        Self::Sgd,
        Self::Adagrad,
        Self::RowWiseAdagrad,
        Self::Adam,
        Self::Momentum,
        Self::AdamW,
        Self::Ftrl,
        Self::RowWiseAdam,
    ];

    /// The code of this optimizer in stored records.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The optimizer of a stored `code`. Errors: `Unsupported` for a reserved or unknown code.
    pub fn from_code(code: u8) -> Result<Self> {
        match Self::ALL.into_iter().find(|kind| kind.code() == code) {
            Some(kind) => Ok(kind),
            None => bail!(
                Unsupported,
                "optimizer code {code} is unknown, expected 0 to {}",
                Self::ALL.len() - 1
            ),
        }
    }

    /// The name that users read and write.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sgd => "sgd",
            Self::Adagrad => "adagrad",
            Self::RowWiseAdagrad => "rowwise_adagrad",
            Self::Adam => "adam",
            Self::Momentum => "momentum",
            Self::AdamW => "adamw",
            Self::Ftrl => "ftrl",
            Self::RowWiseAdam => "rowwise_adam",
        }
    }

    /// The hyperparameters that the matching torch optimizer has by default (SGD has none for lr in
    /// older versions: 1e-3 as in newer ones). Row-wise Adagrad takes those of Adagrad, row-wise
    /// Adam those of Adam, momentum 0.9 and FTRL what TensorFlow has.
    pub fn default_hyper(self) -> Hyper {
        let hyper = Hyper::DEFAULT;
        match self {
            Self::None | Self::Sgd | Self::Ftrl => hyper,
            Self::Momentum => Hyper { momentum: 0.9, ..hyper },
            Self::Adagrad | Self::RowWiseAdagrad => Hyper { lr: 1e-2, eps: 1e-10, ..hyper },
            Self::Adam | Self::RowWiseAdam => Hyper { eps: 1e-8, ..hyper },
            Self::AdamW => Hyper { eps: 1e-8, weight_decay: 1e-2, ..hyper },
        }
    }

    /// The accumulator of a new row, where a spec does not say: TensorFlow's for FTRL.
    fn default_accumulator(self) -> f32 {
        if self == Self::Ftrl { 0.1 } else { 0.0 }
    }
}

impl std::str::FromStr for OptimizerKind {
    type Err = Error;

    /// Errors: `Misuse` for a name that no optimizer has.
    fn from_str(name: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|kind| kind.name() == name) {
            Some(kind) => Ok(kind),
            None => bail!(
                Misuse,
                "optimizer is {name:?}, expected one of {}",
                Self::ALL.map(|kind| format!("{:?}", kind.name())).join(", ")
            ),
        }
    }
}

/// The count that Adam, AdamW and row-wise Adam use to correct the bias of their moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BiasCorrection {
    /// The updates of this row: a row seen for the first time takes a full first step.
    Row,
    /// The update batches of the table, as `torch.optim.SparseAdam` does.
    #[default]
    Global,
}

/// The width and the initial content of a row's state. Stored in the table's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerSpec {
    /// The optimizer.
    pub kind: OptimizerKind,
    /// The count that Adam, AdamW and row-wise Adam use; without effect for the others.
    #[serde(default)]
    pub bias_correction: BiasCorrection,
    /// The accumulator of a new row of Adagrad, row-wise Adagrad and FTRL; without effect for the
    /// others.
    #[serde(default)]
    pub initial_accumulator: f32,
}

impl OptimizerSpec {
    /// A spec of `kind` with the defaults of everything else.
    pub fn new(kind: OptimizerKind) -> Self {
        let initial_accumulator = kind.default_accumulator();
        Self { kind, initial_accumulator, ..Self::default() }
    }

    /// Words of state behind `dim` values.
    pub fn state_words(&self, dim: usize) -> usize {
        let count = usize::from(self.bias_correction == BiasCorrection::Row);
        let words = match self.kind {
            OptimizerKind::None | OptimizerKind::Sgd => (0, 0),
            OptimizerKind::Adagrad | OptimizerKind::Momentum => (1, 0),
            OptimizerKind::RowWiseAdagrad => (0, 1),
            OptimizerKind::Adam | OptimizerKind::AdamW => (2, count),
            OptimizerKind::Ftrl => (2, 0),
            OptimizerKind::RowWiseAdam => (1, 1 + count),
        };
        dim.saturating_mul(words.0).saturating_add(words.1)
    }

    /// Writes the state of a new row. Panics unless `state` has `state_words(dim)` words.
    pub fn init_state(&self, dim: usize, state: &mut [f32]) {
        assert_eq!(state.len(), self.state_words(dim), "words of optimizer state");
        match self.kind {
            OptimizerKind::Adagrad | OptimizerKind::RowWiseAdagrad => {
                state.fill(self.initial_accumulator);
            }
            OptimizerKind::Ftrl => {
                let (accumulators, linear) = state.split_at_mut(dim);
                accumulators.fill(self.initial_accumulator);
                linear.fill(0.0);
            }
            _ => state.fill(0.0),
        }
    }

    /// Checks the spec itself, once when a table is created.
    ///
    /// Errors: `Misuse` when `initial_accumulator` is negative, infinite or NaN.
    pub fn validate_spec(&self) -> Result<()> {
        let value = self.initial_accumulator;
        if !(value.is_finite() && value >= 0.0) {
            bail!(Misuse, "initial_accumulator is {value}, expected a finite number of at least 0");
        }
        Ok(())
    }

    /// Checks the hyperparameters that this optimizer uses; the others may hold anything.
    ///
    /// Errors: `Misuse` naming the field and its value; `Misuse` for a table without optimizer.
    pub fn validate(&self, hyper: &Hyper) -> Result<()> {
        hyper.validate(self.kind)
    }

    /// Forms the factors of one batch of updates. `step` is the 1-based count of the table's update
    /// batches (Adam by global step); 0 is taken as 1. Call [`validate`](Self::validate) before.
    pub fn prepare(&self, hyper: &Hyper, step: u64, dim: usize) -> Prepared {
        let negative_lr = -hyper.lr as f32;
        let eps = hyper.eps as f32;
        let by_row = self.bias_correction == BiasCorrection::Row;
        let correction = || adam::Correction::of_step(hyper, step.max(1));
        let adam = || Bias::new(by_row, hyper, || correction().adam());
        let factors = adam::Factors::new(hyper);
        let rule = match self.kind {
            OptimizerKind::None => Rule::None,
            OptimizerKind::Sgd => Rule::Sgd { negative_lr },
            OptimizerKind::Momentum => Rule::Momentum(sgd::Momentum::new(hyper)),
            OptimizerKind::Adagrad => Rule::Adagrad { negative_lr, eps },
            OptimizerKind::RowWiseAdagrad => Rule::RowWiseAdagrad { negative_lr, eps },
            OptimizerKind::Adam => Rule::Adam { factors, bias: adam() },
            OptimizerKind::AdamW => {
                let bias = Bias::new(by_row, hyper, || correction().adamw());
                Rule::AdamW { factors, bias }
            }
            OptimizerKind::RowWiseAdam => Rule::RowWiseAdam { factors, bias: adam() },
            OptimizerKind::Ftrl => Rule::Ftrl(ftrl::Factors::new(hyper)),
        };
        let state_words = self.state_words(dim);
        Prepared { rule, weight_decay: hyper.weight_decay as f32, dim, state_words }
    }
}

/// One optimizer with the factors of one batch of updates.
#[derive(Clone, Debug)]
pub struct Prepared {
    rule: Rule,
    weight_decay: f32,
    dim: usize,
    state_words: usize,
}

#[derive(Clone, Debug)]
enum Rule {
    None,
    Sgd { negative_lr: f32 },
    Momentum(sgd::Momentum),
    Adagrad { negative_lr: f32, eps: f32 },
    RowWiseAdagrad { negative_lr: f32, eps: f32 },
    Adam { factors: adam::Factors, bias: Bias<f32> },
    AdamW { factors: adam::Factors, bias: Bias<(f32, f32)> },
    RowWiseAdam { factors: adam::Factors, bias: Bias<f32> },
    Ftrl(ftrl::Factors),
}

/// The bias correction of moments: the same for the whole batch, or by each row's own count.
#[derive(Clone, Debug)]
enum Bias<T> {
    Global(T),
    Row(Box<adam::Corrections>),
}

impl<T: Copy> Bias<T> {
    fn new(by_row: bool, hyper: &Hyper, global: impl Fn() -> T) -> Self {
        match by_row {
            true => Self::Row(Box::new(adam::Corrections::new(hyper))),
            false => Self::Global(global()),
        }
    }

    /// The factors of a row's next step, which a row that counts its steps notes in `count`, the
    /// word behind its moments.
    #[inline(always)]
    fn next(&self, count: &mut [f32], factors: impl Fn(&adam::Correction) -> T) -> T {
        match self {
            Self::Global(same) => *same,
            Self::Row(corrections) => factors(&corrections.count(&mut count[0])),
        }
    }
}

impl Prepared {
    /// One optimizer step on one row: changes `values` and `state` in place.
    ///
    /// Panics unless `values` and `gradient` have `dim` words and `state` has `state_words(dim)`.
    /// Non-finite gradients follow IEEE 754; refusing them is the caller's business.
    #[inline]
    pub fn apply(&self, values: &mut [f32], state: &mut [f32], gradient: &[f32]) {
        self.apply_knowing(values, state, gradient, None);
    }

    /// For each gradient the mean of its squares, if steps need it and nothing of the row goes into
    /// it: none for optimizers that are not row-wise, and with weight decay. Not finite where the
    /// gradient is not.
    #[inline]
    pub fn mean_squares<'a>(
        &self,
        gradients: impl ExactSizeIterator<Item = &'a [f32]>,
    ) -> Vec<f32> {
        let needed = matches!(self.rule, Rule::RowWiseAdagrad { .. } | Rule::RowWiseAdam { .. });
        match needed && self.weight_decay == 0.0 {
            true => gradients.map(|row| adagrad::mean_square::<false>(row, row, 0.0)).collect(),
            false => Vec::new(),
        }
    }

    /// As [`apply`](Self::apply), with what [`mean_squares`](Self::mean_squares) gave for
    /// this gradient, or `None`: the same bits, sooner. With weight decay it is not looked at.
    #[inline]
    pub fn apply_knowing(
        &self,
        values: &mut [f32],
        state: &mut [f32],
        gradient: &[f32],
        mean_square: Option<f32>,
    ) {
        assert!(
            values.len() == self.dim
                && gradient.len() == self.dim
                && state.len() == self.state_words,
            "row of {} values and {} state words with a gradient of {}, prepared for {} and {}",
            values.len(),
            state.len(),
            gradient.len(),
            self.dim,
            self.state_words
        );
        if self.weight_decay == 0.0 {
            self.apply_rule::<false>(values, state, gradient, mean_square);
        } else {
            self.apply_rule::<true>(values, state, gradient, None);
        }
    }

    #[inline]
    fn apply_rule<const DECAY: bool>(
        &self,
        values: &mut [f32],
        state: &mut [f32],
        gradient: &[f32],
        mean_square: Option<f32>,
    ) {
        let decay = self.weight_decay;
        let mean = |values: &[f32]| {
            mean_square.unwrap_or_else(|| adagrad::mean_square::<DECAY>(values, gradient, decay))
        };
        match &self.rule {
            Rule::None => {}
            Rule::Sgd { negative_lr } => sgd::step::<DECAY>(values, gradient, decay, *negative_lr),
            Rule::Momentum(momentum) => momentum.step::<DECAY>(values, state, gradient),
            Rule::Adagrad { negative_lr, eps } => {
                adagrad::step::<DECAY>(values, state, gradient, decay, *negative_lr, *eps);
            }
            Rule::RowWiseAdagrad { negative_lr, eps } => {
                let (mean, sum, factors) = (mean(values), &mut state[0], (*negative_lr, *eps));
                adagrad::step_row_wise::<DECAY>(values, sum, gradient, mean, decay, factors);
            }
            Rule::Adam { factors, bias } => {
                let (first, rest) = state.split_at_mut(self.dim);
                let (second, count) = rest.split_at_mut(self.dim);
                let size = bias.next(count, adam::Correction::adam);
                adam::step::<DECAY>(values, first, second, gradient, factors, size);
            }
            Rule::AdamW { factors, bias } => {
                let (first, rest) = state.split_at_mut(self.dim);
                let (second, count) = rest.split_at_mut(self.dim);
                let size_and_root = bias.next(count, adam::Correction::adamw);
                adam::step_decoupled(values, first, second, gradient, factors, size_and_root);
            }
            Rule::RowWiseAdam { factors, bias } => {
                let (first, rest) = state.split_at_mut(self.dim);
                let (second, count) = rest.split_at_mut(1);
                let size = bias.next(count, adam::Correction::adam);
                let second = &mut second[0];
                let mean = mean(values);
                adam::step_row_wise::<DECAY>(values, first, second, gradient, mean, factors, size);
            }
            Rule::Ftrl(factors) => {
                let (accumulators, linear) = state.split_at_mut(self.dim);
                ftrl::step::<DECAY>(values, accumulators, linear, gradient, factors);
            }
        }
    }
}

/// The gradient with weight decay: the product is rounded before the sum.
#[inline(always)]
fn decayed<const DECAY: bool>(gradient: f32, value: f32, weight_decay: f32) -> f32 {
    if DECAY { gradient + weight_decay * value } else { gradient }
}
