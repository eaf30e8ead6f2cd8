"""Logits of a target among sampled negatives, and tied weights, with one lookup for all of them.

A softmax over all rows would read the whole table at each step. With negatives only rows that are
read have gradients, which reach the table as those of any lookup do. Works with torch's own
``Embedding`` too, so that a twin in memory is the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from embedrock._arguments import flag, shown
from embedrock.errors import MisuseError
from embedrock.nn.embedding import Embedding, EmbeddingBag
from embedrock.nn.ranking import is_plain

__all__ = ["sampled_logits", "tied"]


def sampled_logits(
    module: nn.Module,
    hidden: Tensor,
    targets: Tensor,
    negatives: Tensor,
    *,
    log_expected: tuple[Tensor, Tensor] | None = None,
    mask_hits: bool = True,
) -> Tensor:
    """Dot products of hidden states with the rows of their targets and of negatives, which are read
    with one lookup: sampled softmax, with cross entropy to class 0.

    Args:
        module: An ``embedrock.nn.Embedding`` or ``EmbeddingBag``, or one of torch's.
        hidden: The vectors that the model predicts from.
        targets: The right id for each vector.
        negatives: Wrong ids, the same S for all, or S for each.
        log_expected: The logarithm of the expected count of each target and each negative among the
            sampler's draws, in their shapes. It is subtracted from the logits, so that the loss
            approaches that of the full softmax as S grows. None for a uniform sampler.
        mask_hits: A negative that is the target has the logit -inf.

    Shapes: ``hidden (*, D), targets (*), negatives (S,) or (*, S) -> (*, 1 + S)``, the target's
    logit first.

    Errors: ``MisuseError`` for other shapes; otherwise as for the module's forward.

    Source: Bengio & Senécal 2008 and Jean et al. 2015, for the correction.

    >>> import torch
    >>> items = embedrock.nn.Embedding(1000, 4, store=store, name="items")
    >>> hidden, right = torch.randn(8, 4), torch.randint(1000, (8,))
    >>> logits = embedrock.nn.sampled_logits(items, hidden, right, torch.randint(1000, (32,)))
    >>> logits.shape
    torch.Size([8, 33])
    >>> loss = torch.nn.functional.cross_entropy(logits, torch.zeros(8, dtype=torch.int64))
    >>> loss.backward()
    """
    flag("mask_hits", mask_hits)
    _check_floats("hidden", hidden)
    _check_ids(targets, negatives, log_expected)
    rows = _rows(module, {"targets": targets, "negatives": negatives})
    return _logits(hidden, rows[0], rows[1], targets, negatives, log_expected, mask_hits)


def tied(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    negatives: Tensor,
    *,
    log_expected: tuple[Tensor, Tensor] | None = None,
    mask_hits: bool = True,
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Tied weights: the rows of a model's inputs, and the function that makes sampled logits of its
    hidden states with rows of the same table. All are read with one lookup.

    Arguments are those of :func:`sampled_logits`, with ``inputs`` of any shape.

    Shapes: ``inputs (*I) -> (*I, D)``; the function takes ``hidden (*, D)`` and gives ``(*, 1 +
    S)``.

    >>> import torch
    >>> items = embedrock.nn.Embedding(1000, 4, store=store, name="items")
    >>> gru = torch.nn.GRU(4, 4, batch_first=True)
    >>> session = torch.randint(1000, (8, 6))
    >>> inputs, targets, negatives = session[:, :-1], session[:, 1:], torch.randint(1000, (32,))
    >>> rows, logits = embedrock.nn.tied(items, inputs, targets, negatives)
    >>> logits(gru(rows)[0]).shape
    torch.Size([8, 5, 33])
    """
    flag("mask_hits", mask_hits)
    _check_ids(targets, negatives, log_expected)
    ids = {"inputs": inputs, "targets": targets, "negatives": negatives}
    rows, right, wrong = _rows(module, ids)

    def logits(hidden: Tensor) -> Tensor:
        _check_floats("hidden", hidden)
        return _logits(hidden, right, wrong, targets, negatives, log_expected, mask_hits)

    return rows, logits


_BAGS = (EmbeddingBag, nn.EmbeddingBag)
_IDS = (torch.int64, torch.int32)


def _rows(module: Any, ids: dict[str, Tensor]) -> list[Tensor]:
    """The rows of several tensors of ids, each in its shape, with one lookup."""
    if not isinstance(module, (Embedding, nn.Embedding, *_BAGS)):
        raise MisuseError(
            f"module is {shown(module)}, expected an embedrock.nn.Embedding or EmbeddingBag"
        )
    for name, given in ids.items():
        if not is_plain(given) or given.dtype not in _IDS:
            raise MisuseError(f"{name} is {_told(given)}, expected a tensor of int64 or int32")
    try:
        flat = torch.cat([one.reshape(-1) for one in ids.values()])
    except (AssertionError, RuntimeError, TypeError) as error:
        raise MisuseError(f"{', '.join(ids)} cannot be one tensor of ids: {error}") from error
    rows = module(flat.unsqueeze(1) if isinstance(module, _BAGS) else flat)
    parts = rows.split([one.numel() for one in ids.values()])
    return [
        part.view(*one.shape, rows.shape[1]) for part, one in zip(parts, ids.values(), strict=True)
    ]


def _logits(
    hidden: Tensor,
    right: Tensor,
    wrong: Tensor,
    targets: Tensor,
    negatives: Tensor,
    log_expected: tuple[Tensor, Tensor] | None,
    mask_hits: bool,
) -> Tensor:
    if hidden.shape != right.shape:
        raise MisuseError(
            f"hidden has shape {tuple(hidden.shape)}, expected {tuple(right.shape)}: a row for "
            f"each target"
        )
    try:
        of_target = (hidden * right).sum(-1, keepdim=True)
        if negatives.dim() == 1:
            of_negatives = hidden @ wrong.T
        else:
            of_negatives = (wrong @ hidden.unsqueeze(-1)).squeeze(-1)
        if log_expected is not None:
            of_target = of_target - log_expected[0].unsqueeze(-1)
            of_negatives = of_negatives - log_expected[1]
    except (AssertionError, RuntimeError, TypeError) as error:
        raise MisuseError(
            f"hidden is {_told(hidden)}, and no logits come of it with rows of {right.dtype} on "
            f"{right.device}: {error}"
        ) from error
    if mask_hits:
        hits = negatives == targets.unsqueeze(-1)
        of_negatives = of_negatives.masked_fill(hits, -torch.inf)
    return torch.cat([of_target, of_negatives], dim=-1)


def _told(given: Any) -> str:
    return f"a tensor of {given.dtype}" if is_plain(given) else shown(given)


def _check_floats(name: str, given: Any) -> None:
    if not is_plain(given) or not given.is_floating_point():
        raise MisuseError(f"{name} is {_told(given)}, expected a tensor of floats")


def _check_ids(targets: Any, negatives: Any, log_expected: Any) -> None:
    for name, given in (("targets", targets), ("negatives", negatives)):
        if not is_plain(given):
            raise MisuseError(f"{name} is {shown(given)}, expected a tensor of int64 or int32")
    each = negatives.dim() == targets.dim() + 1 and negatives.shape[:-1] == targets.shape
    if not (negatives.dim() == 1 or each):
        raise MisuseError(
            f"negatives has shape {tuple(negatives.shape)}, expected (S,) for all targets, or "
            f"{(*targets.shape, 'S')}: S for each"
        )
    if log_expected is None:
        return
    if not isinstance(log_expected, (tuple, list)) or len(log_expected) != 2:
        raise MisuseError(
            f"log_expected is {shown(log_expected)}, expected a pair: of targets, of negatives"
        )
    for name, given, ids in zip(
        ("log_expected[0]", "log_expected[1]"), log_expected, (targets, negatives), strict=True
    ):
        _check_floats(name, given)
        if given.shape != ids.shape:
            raise MisuseError(
                f"{name} has shape {tuple(given.shape)}, expected {tuple(ids.shape)}: one value "
                f"for each id"
            )
