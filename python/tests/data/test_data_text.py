from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from embedrock.data import DataError
from embedrock.data.text import Head, TextStream, zstd_module

TEXT = b"".join(b"line %d of a text that repeats itself\n" % i for i in range(20_000))


def zstd_compress(text: bytes) -> bytes:
    module = zstd_module()
    if module is None:
        pytest.skip("neither Python's own zstd nor the package zstandard is here")
    return module.compress(text)


def packed(kind: str) -> bytes:
    if kind == "plain":
        return TEXT
    return gzip.compress(TEXT) if kind == "gzip" else zstd_compress(TEXT)


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_text_is_the_same_however_it_is_packed(tmp_path: Path, kind: str):
    path = tmp_path / "text"
    path.write_bytes(packed(kind))
    with TextStream(path) as stream:
        pieces = []
        while piece := stream.read(12_345):
            assert len(piece) == 12_345 or len(b"".join([*pieces, piece])) == len(TEXT)
            pieces.append(piece)
        assert b"".join(pieces) == TEXT
        assert stream.offset == len(TEXT)


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_head_is_the_same_however_the_text_is_packed(tmp_path: Path, kind: str):
    path, other = tmp_path / "text", tmp_path / "other"
    path.write_bytes(packed(kind))
    other.write_bytes(TEXT[:1000] + b"!" + TEXT[1001:])
    assert Head.of(path, 1000) == Head.of(other, 1000)
    assert Head.of(path, 1000).bytes == 1000
    assert Head.of(path, 1001) != Head.of(other, 1001)
    assert Head.of(path).bytes == len(TEXT)


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_reading_goes_on_at_an_offset(tmp_path: Path, kind: str):
    path = tmp_path / "text"
    path.write_bytes(packed(kind))
    with TextStream(path) as stream:
        stream.skip_to(300_007)
        assert stream.read(1000) == TEXT[300_007:301_007]


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_text_of_several_frames_is_read_to_the_end(tmp_path: Path, kind: str):
    path = tmp_path / "text"
    path.write_bytes(packed(kind) + packed(kind))
    with TextStream(path) as stream:
        assert stream.read(3 * len(TEXT)) == TEXT + TEXT


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_truncated_file_is_an_error_that_names_it(tmp_path: Path, kind: str):
    path = tmp_path / "text.packed"
    whole = packed(kind)
    path.write_bytes(whole[: len(whole) // 2])
    with (
        TextStream(path) as stream,
        pytest.raises(DataError, match=r"text.packed: compressed data"),
    ):
        while stream.read(1 << 20):
            pass


def test_a_damaged_gzip_file_is_an_error_that_names_it(tmp_path: Path):
    path = tmp_path / "text.gz"
    damaged = bytearray(packed("gzip"))
    damaged[len(damaged) // 2] ^= 0xFF
    path.write_bytes(damaged)
    with TextStream(path) as stream, pytest.raises(DataError, match=r"text.gz: compressed data"):
        while stream.read(1 << 20):
            pass


def test_without_a_zstd_library_the_error_says_what_to_install(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("embedrock.data.text.zstd_module", lambda: None)
    path = tmp_path / "text.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    with pytest.raises(DataError, match="pip install zstandard"):
        TextStream(path)


def test_a_position_beyond_the_end_is_an_error(tmp_path: Path):
    path = tmp_path / "text"
    for content in (TEXT, gzip.compress(TEXT)):
        path.write_bytes(content)
        with TextStream(path) as stream, pytest.raises(DataError, match=r"reading was to go on at"):
            stream.skip_to(len(TEXT) + 1)
