"""Parses the lines of Avazu's click log as Kaggle has it, a block of whole lines at a time.

A line has 24 columns separated by commas: `id`, which is not used, `click`, `hour` as YYMMDDHH, and
21 tokens of up to 16 characters, some of them numbers, which are 64-bit keys of their column
whatever they are. `hour` gives two more features, hour of the day and day of the week (as
factorization machines for this data do: the hour of a day that will not come again teaches
nothing), and, as the data has no numbers that mean something as numbers, four dense ones: sine and
cosine of the time of the day and of the week. A line that is anything else is malformed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedrock.data.hashing import combine, mix
from embedrock.data.lines import DECIMAL, Block, Fields, number

COLUMNS = [
    "id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id",
    "app_domain", "app_category", "device_id", "device_ip", "device_model", "device_type",
    "device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21",
]  # fmt: skip
CLICK, HOUR, FIRST_TOKEN = COLUMNS.index("click"), COLUMNS.index("hour"), COLUMNS.index("C1")
FEATURES = (*COLUMNS[FIRST_TOKEN:], "hour_of_day", "weekday")
NUM_DENSE = 4
_HOUR_DIGITS = 8
_TOKEN_BYTES = 16


def parse(block: bytes) -> Block:
    """Parses whole lines: `block` ends with a newline or with the text."""
    fields = Fields.split(block, ",", COLUMNS)
    wrong = np.zeros(fields.starts.shape, bool)
    labels, wrong[:, CLICK] = fields.labels(CLICK)
    hours, wrong[:, HOUR] = _hours(
        fields.text, fields.starts[:, HOUR : HOUR + 1], fields.lengths[:, HOUR : HOUR + 1]
    )
    tokens, wrong[:, FIRST_TOKEN:] = _tokens(
        fields.text, fields.starts[:, FIRST_TOKEN:], fields.lengths[:, FIRST_TOKEN:]
    )
    # Day 0 was a Thursday; weeks begin on Monday.
    of_day, of_week = hours % 24, (hours + 3 * 24) % (7 * 24)
    times = [combine(of_day), combine(of_week // 24)]
    keys = np.concatenate([tokens, np.stack(times, axis=1)], axis=1)
    angles = (of_day * (2 * np.pi / 24), of_week * (2 * np.pi / (7 * 24)))
    dense = np.stack([turn(angle) for angle in angles for turn in (np.sin, np.cos)], axis=1)
    return fields.gather(labels, dense.astype(np.float32), keys, wrong, _explain)


def _hours(
    text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(hours since 1970, which fields are no YYMMDDHH)."""
    values, wrong = number(text, starts, lengths, DECIMAL, 10, _HOUR_DIGITS)
    wrong |= lengths != _HOUR_DIGITS
    digits = np.where(wrong, 0, values.astype(np.int64))[:, 0]
    year, month = 2000 + digits // 1_000_000, digits // 10_000 % 100
    day, hour = digits // 100 % 100, digits % 100
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    exists = (month >= 1) & (month <= 12) & (hour < 24) & (days.astype("datetime64[M]") == months)
    return days.astype(np.int64) * 24 + hour, wrong[:, 0] | ~exists


def _tokens(
    text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(keys, which fields are too long): characters and their number, mixed with the column."""
    words = [np.zeros(starts.shape, np.uint64) for _ in range(2)]
    for place in range(min(int(lengths.max(initial=0)), _TOKEN_BYTES)):
        character = text.take(starts + place, mode="clip").astype(np.uint64)
        character = np.where(lengths > place, character, np.uint64(0))
        words[place // 8] |= character << np.uint64(8 * (place % 8))
    salt = mix(np.arange(1, starts.shape[1] + 1, dtype=np.uint64))
    keys = mix(mix(mix(words[0] + salt) ^ words[1]) ^ lengths.astype(np.uint64))
    return keys.view(np.int64), lengths > _TOKEN_BYTES


def _explain(field: int, shown: str) -> tuple[str, str]:
    if field == CLICK:
        problem = f"{shown} is not 0 or 1"
    elif field == HOUR:
        problem = f"{shown} is not a time as YYMMDDHH"
    else:
        problem = f"{shown} is longer than {_TOKEN_BYTES} characters"
    return COLUMNS[field], problem
