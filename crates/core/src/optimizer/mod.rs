//! The optimizers of the engine: what one update does to one row.
//!
//! Owns the arithmetic and the layout of the state words, nothing else: no keys, no batches, no
//! I/O. Gradients of equal keys are summed before they come here. What always holds:
//!
//! * The same row, gradient, [`Hyper`] and step give the same bits on every machine. Operations are
//!   IEEE 754 binary32 in the order written, each rounded once: no contraction to fused
//!   multiply-add, no approximate reciprocal or root, no sum whose order follows the vector width.
//! * The order of operations and roundings is that of torch 2.15 on CPU for `SGD`, `Adagrad`
//!   (sparse gradients, `lr_decay=0`) and `SparseAdam`. The bits are too, but for two liberties of
//!   torch. It takes square roots from a vector library, off by one unit in the last place for
//!   0.7 % of inputs; ours are correctly rounded (Adagrad, Adam). And from AVX2 on it fuses
//!   `add_(x, alpha=a)` to one rounding (SGD, Adagrad, weight decay);
//!   `ATEN_CPU_CAPABILITY=default` turns that off. So SGD equals torch bit for bit under that
//!   setting, the others all but for the roots. Row-wise Adagrad has no counterpart in torch.
//! * Hyperparameters are f64, as Python's floats are; each factor is formed in f64 and rounded to
//!   f32 once.
//!
//! State words, after the values: none and SGD keep none; Adagrad `[dim sums]`; row-wise Adagrad
//! `[1 sum]`; Adam `[dim first moments][dim second moments]`, then `[1 step count]` (the bits of a
//! u32) with bias correction by row.

mod adagrad;
mod adam;
mod sgd;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, bail};

/// Which optimizer a table has. Table records carry its name; the numeric codes are reserved for
/// records that carry numbers (`docs/formats/journal.md`).
///
/// Codes from 5 are reserved for optimizers of later versions.
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
}

impl OptimizerKind {
    const ALL: [Self; 5] = [Self::None, Self::Sgd, Self::Adagrad, Self::RowWiseAdagrad, Self::Adam];

    /// The code of this optimizer in stored records.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The optimizer of a stored `code`. Errors: `Unsupported` for a reserved or unknown code.
    pub fn from_code(code: u8) -> Result<Self> {
        match Self::ALL.into_iter().find(|kind| kind.code() == code) {
            Some(kind) => Ok(kind),
            None => bail!(Unsupported, "optimizer code {code} is unknown, expected 0 to 4"),
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
        }
    }

    /// The hyperparameters that the matching torch optimizer has by default (SGD has none for lr in
    /// older versions: 1e-3 as in newer ones). Row-wise Adagrad takes those of Adagrad.
    pub fn default_hyper(self) -> Hyper {
        let (lr, eps) = match self {
            Self::None | Self::Sgd => (1e-3, 0.0),
            Self::Adagrad | Self::RowWiseAdagrad => (1e-2, 1e-10),
            Self::Adam => (1e-3, 1e-8),
        };
        Hyper { lr, eps, beta1: 0.9, beta2: 0.999, weight_decay: 0.0 }
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

/// What Adam counts to correct the bias of its moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BiasCorrection {
    /// The updates of this row: a row seen for the first time takes a full first step.
    Row,
    /// The update batches of the table, as `torch.optim.SparseAdam` does.
    #[default]
    Global,
}

/// What fixes the width and the first content of a row's state. Stored in the table's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerSpec {
    /// The optimizer.
    pub kind: OptimizerKind,
    /// What Adam counts; without effect for the others.
    #[serde(default)]
    pub bias_correction: BiasCorrection,
    /// The accumulator of a new row of Adagrad and row-wise Adagrad; without effect for the others.
    #[serde(default)]
    pub initial_accumulator: f32,
}

/// What may change at every step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Learning rate.
    pub lr: f64,
    /// Added to the root (Adagrad, row-wise Adagrad, Adam).
    pub eps: f64,
    /// Decay of the first moment (Adam).
    pub beta1: f64,
    /// Decay of the second moment (Adam).
    pub beta2: f64,
    /// L2 penalty on touched rows: `g + weight_decay * w` replaces the gradient.
    pub weight_decay: f64,
}

impl OptimizerSpec {
    /// A spec of `kind` with the defaults of everything else.
    pub fn new(kind: OptimizerKind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Words of state behind `dim` values.
    pub fn state_words(&self, dim: usize) -> usize {
        match self.kind {
            OptimizerKind::None | OptimizerKind::Sgd => 0,
            OptimizerKind::Adagrad => dim,
            OptimizerKind::RowWiseAdagrad => 1,
            OptimizerKind::Adam => {
                dim.saturating_mul(2) + usize::from(self.bias_correction == BiasCorrection::Row)
            }
        }
    }

    /// Writes the state of a new row. Panics unless `state` has `state_words(dim)` words.
    pub fn init_state(&self, dim: usize, state: &mut [f32]) {
        assert_eq!(state.len(), self.state_words(dim), "words of optimizer state");
        state.fill(match self.kind {
            OptimizerKind::Adagrad | OptimizerKind::RowWiseAdagrad => self.initial_accumulator,
            OptimizerKind::None | OptimizerKind::Sgd | OptimizerKind::Adam => 0.0,
        });
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
        let Hyper { lr, eps, beta1, beta2, weight_decay } = *hyper;
        if self.kind == OptimizerKind::None {
            bail!(
                Misuse,
                "the table has optimizer \"none\" and takes no updates; use put or modify, or \
                 create it with an optimizer"
            );
        }
        check_non_negative("lr", lr)?;
        check_non_negative("weight_decay", weight_decay)?;
        if self.kind != OptimizerKind::Sgd {
            check_non_negative("eps", eps)?;
        }
        if self.kind == OptimizerKind::Adam {
            check_beta("beta1", beta1)?;
            check_beta("beta2", beta2)?;
        }
        Ok(())
    }

    /// Forms the factors of one batch of updates. `step` is the 1-based count of the table's update
    /// batches (Adam by global step); 0 is taken as 1. Call [`validate`](Self::validate) before.
    pub fn prepare(&self, hyper: &Hyper, step: u64, dim: usize) -> Prepared {
        let negative_lr = -hyper.lr as f32;
        let eps = hyper.eps as f32;
        let rule = match (self.kind, self.bias_correction) {
            (OptimizerKind::None, _) => Rule::None,
            (OptimizerKind::Sgd, _) => Rule::Sgd { negative_lr },
            (OptimizerKind::Adagrad, _) => Rule::Adagrad { negative_lr, eps },
            (OptimizerKind::RowWiseAdagrad, _) => Rule::RowWiseAdagrad { negative_lr, eps },
            (OptimizerKind::Adam, BiasCorrection::Global) => Rule::Adam {
                factors: adam::Factors::new(hyper),
                negative_step_size: adam::negative_step_size(hyper, step.max(1)),
            },
            (OptimizerKind::Adam, BiasCorrection::Row) => Rule::AdamByRow {
                factors: adam::Factors::new(hyper),
                sizes: Box::new(adam::StepSizes::new(hyper)),
            },
        };
        let state_words = self.state_words(dim);
        Prepared { rule, weight_decay: hyper.weight_decay as f32, dim, state_words }
    }
}

fn check_non_negative(field: &str, value: f64) -> Result<()> {
    if value >= 0.0 && (value as f32).is_finite() {
        return Ok(());
    }
    bail!(Misuse, "{field} is {value}, expected a finite float32 number of at least 0")
}

fn check_beta(field: &str, value: f64) -> Result<()> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    bail!(Misuse, "{field} is {value}, expected a number of at least 0 and below 1")
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
    Adagrad { negative_lr: f32, eps: f32 },
    RowWiseAdagrad { negative_lr: f32, eps: f32 },
    Adam { factors: adam::Factors, negative_step_size: f32 },
    AdamByRow { factors: adam::Factors, sizes: Box<adam::StepSizes> },
}

impl Prepared {
    /// One optimizer step on one row: changes `values` and `state` in place.
    ///
    /// Panics unless `values` and `gradient` have `dim` words and `state` has `state_words(dim)`.
    /// Non-finite gradients follow IEEE 754; refusing them is the caller's business.
    #[inline]
    pub fn apply(&self, values: &mut [f32], state: &mut [f32], gradient: &[f32]) {
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
            self.apply_rule::<false>(values, state, gradient);
        } else {
            self.apply_rule::<true>(values, state, gradient);
        }
    }

    #[inline]
    fn apply_rule<const DECAY: bool>(
        &self,
        values: &mut [f32],
        state: &mut [f32],
        gradient: &[f32],
    ) {
        let decay = self.weight_decay;
        match &self.rule {
            Rule::None => {}
            Rule::Sgd { negative_lr } => sgd::step::<DECAY>(values, gradient, decay, *negative_lr),
            Rule::Adagrad { negative_lr, eps } => {
                adagrad::step::<DECAY>(values, state, gradient, decay, *negative_lr, *eps);
            }
            Rule::RowWiseAdagrad { negative_lr, eps } => {
                let sum = &mut state[0];
                adagrad::step_row_wise::<DECAY>(values, sum, gradient, decay, *negative_lr, *eps);
            }
            Rule::Adam { factors, negative_step_size } => {
                let (first, second) = state.split_at_mut(self.dim);
                let size = *negative_step_size;
                adam::step::<DECAY>(values, first, second, gradient, factors, size);
            }
            Rule::AdamByRow { factors, sizes } => {
                let (moments, count) = state.split_at_mut(2 * self.dim);
                let (first, second) = moments.split_at_mut(self.dim);
                let step = count[0].to_bits().saturating_add(1);
                count[0] = f32::from_bits(step);
                let size = sizes.negative_step_size(step);
                adam::step::<DECAY>(values, first, second, gradient, factors, size);
            }
        }
    }
}

/// The gradient with weight decay: the product is rounded before the sum.
#[inline(always)]
fn decayed<const DECAY: bool>(gradient: f32, value: f32, weight_decay: f32) -> f32 {
    if DECAY { gradient + weight_decay * value } else { gradient }
}
