//! The hyperparameters that may change at every step of an optimizer, as one object.

use super::core;
use pyo3::prelude::*;

/// The learning rate and the other hyperparameters that may change at every step.
#[pyclass(frozen, module = "embedrock._core")]
#[derive(Clone, Copy)]
pub(crate) struct Hyper(pub(super) core::optimizer::Hyper);

#[pymethods]
impl Hyper {
    /// Takes what the optimizer reads; the rest may stay as it is. Without `lr_power` it is -1/2.
    #[new]
    #[pyo3(signature = (*, lr, eps=0.0, beta1=0.9, beta2=0.999, weight_decay=0.0, momentum=0.0,
        dampening=0.0, nesterov=false, lr_power=None, l1=0.0, l2=0.0, beta=0.0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python constructor")]
    fn new(
        lr: f64,
        eps: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        momentum: f64,
        dampening: f64,
        nesterov: bool,
        lr_power: Option<f64>,
        l1: f64,
        l2: f64,
        beta: f64,
    ) -> Self {
        Self(core::optimizer::Hyper {
            lr,
            eps,
            beta1,
            beta2,
            weight_decay,
            momentum,
            dampening,
            nesterov,
            lr_power: lr_power.unwrap_or(core::optimizer::Hyper::DEFAULT.lr_power),
            l1,
            l2,
            beta,
        })
    }
}
