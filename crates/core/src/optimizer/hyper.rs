//! Hyperparameters, which may change at every step, and which of them each optimizer accepts.

use super::OptimizerKind;
use crate::error::{Result, bail};

/// Hyperparameters of a step. An optimizer reads the fields that name it, and `lr` and
/// `weight_decay` always; the others may hold anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Learning rate.
    pub lr: f64,
    /// Added to the root (Adagrad, row-wise Adagrad, Adam, AdamW, row-wise Adam).
    pub eps: f64,
    /// Decay of the first moment (Adam, AdamW, row-wise Adam).
    pub beta1: f64,
    /// Decay of the second moment (Adam, AdamW, row-wise Adam).
    pub beta2: f64,
    /// L2 penalty on touched rows: `g + weight_decay * w` replaces the gradient. With AdamW touched
    /// rows shrink by `lr * weight_decay` instead.
    pub weight_decay: f64,
    /// Share of the buffer that stays at each step (momentum).
    pub momentum: f64,
    /// The gradient enters the buffer by `1 - dampening` (momentum).
    pub dampening: f64,
    /// Step along the gradient plus `momentum` times the buffer (momentum).
    pub nesterov: bool,
    /// The learning rate falls with the accumulator to this power, at most 0 (FTRL).
    pub lr_power: f64,
    /// L1 penalty: elements whose linear term stays within it are exactly zero (FTRL).
    pub l1: f64,
    /// L2 penalty, as TensorFlow counts it: twice this is added to the denominator (FTRL).
    pub l2: f64,
    /// Added to the root of the accumulator (FTRL).
    pub beta: f64,
}

impl Hyper {
    /// torch's defaults where optimizers share them; `lr` and `eps` differ from one to the next
    /// ([`OptimizerKind::default_hyper`]).
    pub const DEFAULT: Self = Self {
        lr: 1e-3,
        eps: 0.0,
        beta1: 0.9,
        beta2: 0.999,
        weight_decay: 0.0,
        momentum: 0.0,
        dampening: 0.0,
        nesterov: false,
        lr_power: -0.5,
        l1: 0.0,
        l2: 0.0,
        beta: 0.0,
    };

    /// Checks what `kind` reads. Errors: `Misuse` naming the field and its value; `Misuse` for a
    /// table without optimizer.
    pub(super) fn validate(&self, kind: OptimizerKind) -> Result<()> {
        let Self { lr, eps, beta1, beta2, weight_decay, .. } = *self;
        check_non_negative("lr", lr)?;
        check_non_negative("weight_decay", weight_decay)?;
        match kind {
            OptimizerKind::None => bail!(
                Misuse,
                "the table has optimizer \"none\" and takes no updates; use put or modify, or \
                 create it with an optimizer"
            ),
            OptimizerKind::Sgd => {}
            OptimizerKind::Adagrad | OptimizerKind::RowWiseAdagrad => {
                check_non_negative("eps", eps)?;
            }
            OptimizerKind::Adam | OptimizerKind::AdamW | OptimizerKind::RowWiseAdam => {
                check_non_negative("eps", eps)?;
                check_beta("beta1", beta1)?;
                check_beta("beta2", beta2)?;
            }
            OptimizerKind::Momentum => self.validate_momentum()?,
            OptimizerKind::Ftrl => self.validate_ftrl()?,
        }
        Ok(())
    }

    fn validate_momentum(&self) -> Result<()> {
        let Self { momentum, dampening, nesterov, .. } = *self;
        check_non_negative("momentum", momentum)?;
        check_finite("dampening", dampening)?;
        if nesterov && (momentum == 0.0 || dampening != 0.0) {
            bail!(
                Misuse,
                "nesterov is set with momentum {momentum} and dampening {dampening}, expected \
                 momentum above 0 and dampening 0"
            );
        }
        Ok(())
    }

    fn validate_ftrl(&self) -> Result<()> {
        let Self { lr, lr_power, l1, l2, beta, .. } = *self;
        // The accumulated gradients are divided by it, as one float32 number.
        if lr as f32 == 0.0 {
            bail!(Misuse, "lr is {lr}, expected more than 0 for optimizer \"ftrl\"");
        }
        check_finite("lr_power", lr_power)?;
        if lr_power > 0.0 {
            bail!(Misuse, "lr_power is {lr_power}, expected at most 0");
        }
        check_non_negative("l1", l1)?;
        check_non_negative("l2", l2)?;
        check_non_negative("beta", beta)
    }
}

impl Default for Hyper {
    fn default() -> Self {
        Self::DEFAULT
    }
}

fn check_non_negative(field: &str, value: f64) -> Result<()> {
    if value >= 0.0 && (value as f32).is_finite() {
        return Ok(());
    }
    bail!(Misuse, "{field} is {value}, expected a finite float32 number of at least 0")
}

fn check_finite(field: &str, value: f64) -> Result<()> {
    if (value as f32).is_finite() {
        return Ok(());
    }
    bail!(Misuse, "{field} is {value}, expected a finite float32 number")
}

fn check_beta(field: &str, value: f64) -> Result<()> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    bail!(Misuse, "{field} is {value}, expected a number of at least 0 and below 1")
}
