"""The click model over MovieLens: labels, dense features, ids and their crosses, as CTR systems do.

A rating of 4 or more is a click; models with several targets have one of 3 or more beside it, which
is not a dislike. Nothing in a sample's features comes from its own label or from
later samples. The crosses turn 100,000 ratings into a few hundred thousand sparse 64-bit keys;
many of them occur once, as in production logs: such keys fill tables and teach nothing, and the
report counts them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedrock.data.batch import Feature
from embedrock.data.hashing import combine
from embedrock.data.memory import Column, MemoryDataset
from embedrock.data.movielens import Ratings

CLICK_FROM_RATING = 4.0
#: The targets by name: the rating from which each is 1.
TARGETS = {"liked": CLICK_FROM_RATING, "not_disliked": 3.0}


def click_dataset(
    ratings: Ratings, *, holdout: float = 0.1, seed: int = 0, several_targets: bool = False
) -> MemoryDataset:
    """The last `holdout` share in time is held out, the rest is shuffled anew in each epoch. Labels
    are clicks (N,), or with `several_targets` those of `TARGETS` (N, 2)."""
    columns = _columns(ratings)
    labels = (ratings.rating >= CLICK_FROM_RATING).astype(np.float32)
    if several_targets:
        labels = np.stack([ratings.rating >= least for least in TARGETS.values()], axis=1)
        labels = labels.astype(np.float32)
    return MemoryDataset(
        "movielens",
        [Feature(name) for name in columns],
        list(columns.values()),
        dense_features(ratings),
        labels,
        num_test=int(len(labels) * holdout),
        shuffle_seed=seed,
        targets=tuple(TARGETS) if several_targets else ("click",),
    )


def _columns(r: Ratings) -> dict[str, Column]:
    """Feature name → keys. A bag feature crossed with an id gives a bag."""
    hour = r.timestamp // 3600 % 24
    weekday = r.timestamp // 86400 % 7
    user, item = r.user, r.item
    columns = {
        "user": Column(combine(user)),
        "item": Column(combine(item)),
        "hour": Column(combine(hour)),
        "weekday": Column(combine(weekday)),
        "user_x_hour": Column(combine(user, hour)),
        "user_x_weekday_x_hour": Column(combine(user, weekday, hour)),
        "item_x_hour": Column(combine(item, hour)),
        "user_x_item": Column(combine(user, item)),
    }
    if r.users is not None:
        decade, gender, occupation = r.users.age // 10, r.users.gender, r.users.occupation
        columns |= {
            "age": Column(combine(r.users.age)),
            "occupation": Column(combine(occupation)),
            "zip_prefix": Column(combine(r.users.zip_prefix)),
            "item_x_age_x_gender": Column(combine(item, decade, gender)),
            "item_x_age_x_occupation": Column(combine(item, decade, occupation)),
            "item_x_gender_x_occupation": Column(combine(item, gender, occupation)),
            "item_x_zip_prefix": Column(combine(item, r.users.zip_prefix)),
        }
    if r.items is not None:
        offsets, genres = r.items.genre_offsets, r.items.genres

        def per_genre(column: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.repeat(column, np.diff(offsets))

        columns |= {
            "year": Column(combine(r.items.year)),
            "genres": Column(combine(genres), offsets),
            "user_x_year": Column(combine(user, r.items.year)),
            "user_x_genre": Column(combine(per_genre(user), genres), offsets),
            "hour_x_genre": Column(combine(per_genre(hour), genres), offsets),
        }
        if r.users is not None:
            crossed = (per_genre(r.users.age // 10), per_genre(r.users.occupation), genres)
            columns["age_x_occupation_x_genre"] = Column(combine(*crossed), offsets)
    return columns


def dense_features(r: Ratings) -> NDArray[np.float32]:
    """(N, 9) float32, each around [-1, 2]: clock and calendar, age, year, events so far."""
    hour_angle = r.timestamp % 86400 * (2 * np.pi / 86400)
    week_angle = r.timestamp % 604800 * (2 * np.pi / 604800)
    zeros = np.zeros(len(r.user))
    age = zeros if r.users is None else r.users.age / 50
    year = zeros if r.items is None else np.where(r.items.year > 0, (r.items.year - 1980) / 20, 0)
    events = [np.log1p(_events_before(ids)) / 5 for ids in (r.user, r.item)]
    columns = [np.sin(hour_angle), np.cos(hour_angle), np.sin(week_angle), np.cos(week_angle)]
    columns += [age, year, *events, np.ones(len(r.user))]
    return np.stack(columns, axis=1).astype(np.float32)


def _events_before(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each position: how many earlier positions hold the same id."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    starts = np.flatnonzero(new)
    before = np.arange(len(ids)) - np.repeat(starts, np.diff(np.append(starts, len(ids))))
    result = np.empty(len(ids), np.int64)
    result[order] = before
    return result
