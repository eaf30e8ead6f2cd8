"""A stream of samples in the shape of Criteo's Kaggle data, with labels from a planted model.

Nothing is kept: sample n is a function of (seed, n), made by hashing counters, so the same settings
give the same stream in every process, and it can be entered anywhere. Fields are drawn
independently of each other and of time: the skew is the data's (`criteo_shape`), the way in which
tokens travel together and go out of fashion is not.

The planted model is a factorization machine: every (field, token) has a hidden weight and a hidden
vector of four numbers, hashes too. The logit is the sum of weights, of all inner products of pairs
of vectors and of weighted dense features, shifted so that about a fifth of the samples are clicks;
the label is a coin with that logit. No model can be better on average than the planted one, so its
own AUC is what a trained one is held against.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from embedrock.data.batch import Batch, Feature, Position
from embedrock.data.criteo_shape import DENSE_MEAN, DENSE_STD, names, scaled
from embedrock.data.hashing import mix

_U64 = np.uint64
_GOLDEN = _U64(0x9E3779B97F4A7C15)
#: Hashes that a sample may take; a power of two above fields + dense features + label.
_COUNTERS = 64
#: Held-out samples are numbered from here on, where no training sample gets to.
_FIRST_TEST = 1 << 40
#: Weights, vectors and dense features: how much each of the three moves the logit (its deviation).
_WEIGHTS, _VECTORS, _DENSE = 1.2, 0.6, 0.5
_VECTOR_DIM = 4
#: The mean logit, and how many samples it is set on.
_MEAN_LOGIT, _MEAN_OVER = -1.7, 4096


class CriteoShaped:
    """The stream with `rows` rows in all tables. See `Dataset`; one key for each feature.

    An epoch is the next `samples` samples of the stream, so none comes twice.
    """

    def __init__(self, rows: int, *, seed: int, samples: int, test_samples: int) -> None:
        """Makes nothing yet. Errors: MisuseError for `rows`, as `criteo_shape.scaled` says."""
        self.name = "criteo-shaped"
        self.fields = scaled(rows)
        self.num_dense = len(DENSE_MEAN)
        self.targets: tuple[str, ...] = ("click",)
        self.features = [
            Feature(name, expected_rows=field.rows, num_embeddings=field.rows)
            for name, field in zip(names(self.fields), self.fields, strict=True)
        ]
        self.num_test = test_samples
        self._samples = samples
        self._seed = mix(np.array([seed % 2**64], _U64) + _GOLDEN)[0]
        self._dense_weights = 2 * _uniform(self._hash(np.arange(self.num_dense), 1)) - 1
        self._shift = 0.0
        keys, dense = self._keys(np.arange(_MEAN_OVER)), self._dense(np.arange(_MEAN_OVER))
        self._shift = _MEAN_LOGIT - float(self.planted_logits(keys, dense).mean())

    def num_train(self) -> int:
        """Samples of an epoch."""
        return self._samples

    def train_batches(self, batch_size: int, start: Position) -> Iterator[Batch]:
        """See `Dataset`."""
        first = start.epoch * self._samples
        for number in range(start.batch, -(-self._samples // batch_size)):
            begin = number * batch_size
            end = min(begin + batch_size, self._samples)
            yield self._batch(
                np.arange(first + begin, first + end), Position(start.epoch, number + 1)
            )

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """See `Dataset`."""
        for begin in range(0, self.num_test, batch_size):
            end = min(begin + batch_size, self.num_test)
            yield self._batch(np.arange(_FIRST_TEST + begin, _FIRST_TEST + end), Position())

    def planted_logits(
        self, keys: NDArray[np.int64], dense: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """The output of the planted model. Shapes: keys (F, B), dense (B, 13) → (B,)."""
        fields = len(keys)
        salt = (np.arange(fields, dtype=_U64)[:, None] + _U64(1)) << _U64(40)
        hidden = mix((keys.view(_U64) + salt) ^ self._seed)
        weights = np.sqrt(3.0) * (2 * _uniform(mix(hidden + _GOLDEN)) - 1)
        parts = hidden[..., None] >> (_U64(16) * np.arange(_VECTOR_DIM, dtype=_U64))
        vectors = np.sqrt(3.0) * ((parts & _U64(0xFFFF)).astype(np.float64) / 32767.5 - 1)
        products = ((vectors.sum(0) ** 2) - (vectors**2).sum(0)).sum(1) / 2
        pairs = fields * (fields - 1) / 2
        deviations = (dense - np.array(DENSE_MEAN)) / np.array(DENSE_STD)
        logits: NDArray[np.float64] = (
            _WEIGHTS * weights.sum(0) / np.sqrt(fields)
            + _VECTORS * products / np.sqrt(pairs * _VECTOR_DIM)
            + _DENSE * (deviations @ self._dense_weights) / np.linalg.norm(self._dense_weights)
            + self._shift
        )
        return logits

    def _batch(self, samples: NDArray[np.int64], following: Position) -> Batch:
        keys, dense = self._keys(samples), self._dense(samples)
        odds = self.planted_logits(keys, dense)
        coin = _uniform(self._hash(samples, 0))
        labels = (coin * (1 + np.exp(-odds)) < 1).astype(np.float32)
        flat = keys.reshape(-1)
        return Batch(dense, flat, np.arange(len(flat) + 1), labels, following)

    def _keys(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """(F, B) ids."""
        first = 2 + self.num_dense
        return np.stack(
            [
                field.ids(field.ranks(_uniform(self._hash(samples, first + place))))
                for place, field in enumerate(self.fields)
            ]
        )

    def _dense(self, samples: NDArray[np.int64]) -> NDArray[np.float32]:
        """(B, 13): normal with the data's mean and deviation, cut off at 0 as log(1 + x) is. A
        normal number is the sum of four uniform ones of 16 bits."""
        columns = []
        for place, (mean, std) in enumerate(zip(DENSE_MEAN, DENSE_STD, strict=True)):
            parts = self._hash(samples, 2 + place)[:, None] >> (_U64(16) * np.arange(4, dtype=_U64))
            sums = (parts & _U64(0xFFFF)).sum(axis=1).astype(np.float64) / 65536
            columns.append(np.maximum(mean + std * np.sqrt(3.0) * (sums - 2), 0))
        return np.stack(columns, axis=1).astype(np.float32)

    def _hash(self, samples: NDArray[np.int64], counter: int) -> NDArray[np.uint64]:
        """64 bits for each sample, independent for each of up to 64 counters."""
        place = samples.astype(_U64) * _U64(_COUNTERS) + _U64(counter)
        return mix(mix(place + self._seed) ^ self._seed)


def _uniform(hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) of 53 bits."""
    uniform: NDArray[np.float64] = (hashes >> _U64(11)).astype(np.float64) * 2.0**-53
    return uniform
