"""Generated data in the formats of real files, for tests of readers and training."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

#: Real samples, beside the repository or wherever EMBEDROCK_SHARED says.
SHARED = Path(
    os.environ.get("EMBEDROCK_SHARED", Path(__file__).resolve().parents[3] / "shared" / "data")
)


def shared(name: str) -> Path:
    """A real sample, or a skip that says which file is missing."""
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"real sample {path} is not here (EMBEDROCK_SHARED names its folder)")
    return path


def criteo_line(
    rng: np.random.Generator, label: int | None = None, tokens_per_field: int = 50
) -> str:
    """One line in Criteo's format; a tenth of its values are missing."""
    integers = [str(int(rng.integers(-2, 5000))) if rng.random() > 0.1 else "" for _ in range(13)]
    chosen = rng.integers(0, tokens_per_field, 26)
    tokens = [
        f"{(int(t) * 2654435761 + f) % 2**32:08x}" if rng.random() > 0.1 else ""
        for f, t in enumerate(chosen)
    ]
    clicked = int(rng.random() < 0.2 + 0.5 * (chosen[0] % 2)) if label is None else label
    return "\t".join([str(clicked), *integers, *tokens])


def criteo_file(path: Path, lines: int, seed: int = 0, tokens_per_field: int = 50) -> Path:
    """A plain file of generated lines, without a header."""
    rng = np.random.default_rng(seed)
    text = "".join(criteo_line(rng, None, tokens_per_field) + "\n" for _ in range(lines))
    path.write_text(text)
    return path


AVAZU_HEADER = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,"
    "device_id,device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)


def avazu_file(path: Path, lines: int, seed: int = 0, tokens_per_field: int = 50) -> Path:
    """A plain csv in Avazu's format, four hours of it, with its header."""
    rng = np.random.default_rng(seed)
    rows = [AVAZU_HEADER]
    for line in range(lines):
        chosen = rng.integers(0, tokens_per_field, 21)
        clicked = int(rng.random() < 0.1 + 0.5 * (chosen[0] % 2))
        tokens = [f"{(int(t) * 2654435761 + f) % 2**32:08x}" for f, t in enumerate(chosen)]
        hour = f"141021{4 * line // lines:02d}"
        rows.append(",".join([str(10**18 + line), str(clicked), hour, *tokens]))
    path.write_text("\n".join(rows) + "\n")
    return path


def movielens_folder(folder: Path, ratings: int = 2000, seed: int = 0) -> Path:
    """A folder in the form of MovieLens-100K: `u.data`, `u.user`, `u.item`."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    users, items = 60, 90
    pairs = rng.choice(users * items, size=ratings, replace=False)
    lines = []
    for place, pair in enumerate(pairs):
        user, item = int(pair) // items + 1, int(pair) % items + 1
        liked = rng.random() < (0.8 if item % 3 == 0 else 0.3)
        rating = int(rng.integers(4, 6) if liked else rng.integers(1, 4))
        lines.append(f"{user}\t{item}\t{rating}\t{880000000 + place * 977}")
    (folder / "u.data").write_text("\n".join(lines) + "\n")
    jobs = ["writer", "doctor", "student"]
    (folder / "u.user").write_text(
        "".join(
            f"{u}|{18 + u % 50}|{'MF'[u % 2]}|{jobs[u % 3]}|{10000 + u * 37}\n"
            for u in range(1, users + 1)
        )
    )
    rows = []
    for item in range(1, items + 1):
        genres = [0] * 19
        genres[item % 19] = genres[(item * 7) % 19] = 1
        flags = "|".join(map(str, genres))
        rows.append(
            f"{item}|Film {item} (19{50 + item % 50})|01-Jan-19{50 + item % 50}||http|{flags}\n"
        )
    (folder / "u.item").write_text("".join(rows))
    return folder
