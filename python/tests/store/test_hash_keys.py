"""Keys of texts. Their values are fixed: a store must find the rows of earlier versions."""

from __future__ import annotations

import numpy as np
import pytest

import embedrock
from embedrock.errors import MisuseError

# XXH3, 64 bits, seed 0, as its reference implementation has them. Never to change.
GOLDEN = {
    "": 0x2D06800538D394C2,
    "a": 0xE6C632B61E964E1F,
    "abc": 0x78AF5F94892F3950,
    "user_1": 0x20F909AB6F54D5A1,
}


def test_keys_are_those_of_every_version() -> None:
    keys = embedrock.hash_keys(list(GOLDEN))
    assert keys.dtype == np.int64
    assert [hex(k) for k in keys.view(np.uint64).tolist()] == [hex(v) for v in GOLDEN.values()]
    long = ["é" * 200, "x" * 1000, "\0"]
    assert embedrock.hash_keys(long).tolist() == GOLDEN_LONG


GOLDEN_LONG = [-9043801423743025689, -4565375157376599422, -4302098779834749733]


def test_texts_and_bytes_in_any_container_have_equal_keys() -> None:
    texts = ["user_1", "ü", "", "b"]
    expected = embedrock.hash_keys(texts)
    for same in (
        tuple(texts),
        [text.encode() for text in texts],
        np.array(texts),
        np.array(texts, object),
        np.array([text.encode() for text in texts]),
        ["user_1", "ü".encode(), "", b"b"],
    ):
        np.testing.assert_array_equal(embedrock.hash_keys(same), expected)
    square = embedrock.hash_keys(np.array(texts).reshape(2, 2))
    np.testing.assert_array_equal(square, expected.reshape(2, 2))
    np.testing.assert_array_equal(embedrock.hash_keys([texts, texts]), [expected, expected])
    assert embedrock.hash_keys([]).shape == (0,) and embedrock.hash_keys([]).dtype == np.int64
    assert embedrock.hash_keys([b"a", b"a\0"]).tolist() != [expected[0]] * 2
    many = embedrock.hash_keys([f"user_{i}" for i in range(200_000)])
    assert len(np.unique(many)) == 200_000


@pytest.mark.parametrize(
    ("strings", "said"),
    [
        ("user_1", r"expected a list or an array of them: hash_keys\(\[...\]\)"),
        ([1, 2], r"strings\[0\] is 1, expected str or bytes"),
        (["a", None], r"strings\[1\] is None, expected str or bytes"),
        (np.array(["a", float("nan")], object), r"strings\[1\] is nan"),
        (["a", "\ud800"], r"strings\[1\] is '.ud800'"),
        (np.arange(3), "strings are int64, expected str or bytes; integers are keys as they are"),
    ],
)
def test_what_is_no_text_is_refused(strings: object, said: str) -> None:
    with pytest.raises(MisuseError, match=said):
        embedrock.hash_keys(strings)


# The message told to convert ids with astype(np.int64), which fails for "user_1".
def test_texts_as_keys_are_told_of_it(store: embedrock.Store) -> None:
    table = store.table("t", 4)
    for keys in (["user_1"], np.array(["a", "b"]), np.array(["a"], object), [b"a"]):
        with pytest.raises(MisuseError, match=r"with embedrock.hash_keys\(...\)"):
            table.get(keys)
    table.put(embedrock.hash_keys(["user_1"]), np.ones((1, 4), np.float32))
    assert table.get(embedrock.hash_keys(np.array(["user_1", "user_2"])))[0].sum() == 4
