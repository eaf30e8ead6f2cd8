"""A click log of the user's own: `embedrock train --format csv`."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import embedrock
import withtorch
from embedrock import cli
from embedrock.data.batch import Position
from embedrock.data.csv import Columns, Csv
from embedrock.data.errors import DataError
from embedrock.data.streamed import StreamedDataset, scan
from embedrock.errors import MisuseError

COLUMNS = Columns("click", ("user", "item"), ("price", "age"))


def write(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path: Path, columns: Columns = COLUMNS, **more: object):
    kind = Csv(path, columns)
    found = scan(path, kind, **more)
    data = StreamedDataset(path, kind, scan=found, holdout=0.0, **more)
    batches = list(data.train_batches(1000, Position()))
    return data, batches


def signed_log(value: float) -> float:
    return math.copysign(math.log1p(abs(value)), value)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_named_columns_are_read_and_others_left_out(
    tmp_path: Path, name: str, separator: str
) -> None:
    lines = [
        "id,age,user,click,item,price",
        "x,3,u 1,1,7,9.5",
        "y,,ü,0,,-2e3",
        "z,-1,u 1,0,07,0",
    ]
    path = write(tmp_path / name, "\n".join(lines).replace(",", separator))
    data, (batch,) = read(path)
    assert data.num_dense == 2 and [f.name for f in data.features] == ["user", "item"]
    assert [f.expected_rows for f in data.features] == [2, 3]
    assert batch.labels.tolist() == [1, 0, 0]
    users, items = ["u 1", "ü", "u 1"], ["7", "", "07"]
    assert batch.feature_keys(0).tolist() == embedrock.hash_keys(users).tolist()
    assert batch.feature_keys(1).tolist() == embedrock.hash_keys(items).tolist()
    expected = [[9.5, 3], [-2000, 0], [0, -1]]
    expected = [[np.float32(signed_log(value)) for value in row] for row in expected]
    np.testing.assert_array_equal(batch.dense, np.array(expected))


def test_quotes_returns_and_a_mark_are_no_part_of_values(tmp_path: Path) -> None:
    text = (
        b'\xef\xbb\xbf"click","user","item","price","age"\r\n'
        b'1,"a,b","say ""x""",1,2\r\n'
        b"0,c,d,3,4\r\n"
        b'"0","e",f,"5","6"\r\n'
    )
    _, (batch,) = read(write(tmp_path / "a.csv", text))
    assert batch.labels.tolist() == [1, 0, 0]
    assert batch.feature_keys(0).tolist() == embedrock.hash_keys(["a,b", "c", "e"]).tolist()
    assert batch.feature_keys(1).tolist() == embedrock.hash_keys(['say "x"', "d", "f"]).tolist()
    assert batch.next.offset == len(text) and batch.next.line == 5


def test_batches_go_on_from_their_positions(tmp_path: Path) -> None:
    lines = [f'{i % 2},"u,{i % 50}",{i},{i / 3},{i % 9}' for i in range(500)]
    lines += [f"{i % 2},u{i},{i},{i},{i}" for i in range(60_000)]
    path = write(tmp_path / "a.csv", "\n".join(["click,user,item,price,age", *lines]))
    data, batches = read(path)
    assert sum(map(len, batches)) == 60_500 and batches[0].next.line == 1002
    for place in (0, 3, 40):
        again = next(data.train_batches(1000, batches[place].next))
        np.testing.assert_array_equal(again.keys, batches[place + 1].keys)
        np.testing.assert_array_equal(again.dense, batches[place + 1].dense)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2,a,b,1,1", "line 3, click: '2' is not 0 or 1"),
        ("yes,a,b,1,1", "line 3, click: 'yes' is not 0 or 1"),
        ("1,a,b,cheap,1", "line 3, price: 'cheap' is not a finite number"),
        ("1,a,b,1,nan", "line 3, age: 'nan' is not a finite number"),
        ("1,a,b,1e999,1", "line 3, price: '1e999' is not a finite number"),
        ("1,a,b,1", "line 3: 4 comma-separated fields, expected 5 (click to age)"),
        ('1,"a,b,1,1', "line 3: has a quotation mark that is not closed in its line"),
        ("", "line 3: line is empty"),
    ],
)
def test_a_malformed_line_is_told_with_its_place(tmp_path: Path, line: str, said: str) -> None:
    path = write(tmp_path / "a.csv", f"click,user,item,price,age\n1,a,b,1,1\n{line}\n0,c,d,2,2\n")
    with pytest.raises(DataError) as caught:
        read(path)
    assert said in str(caught.value)
    data, (batch,) = read(path, skip_bad_lines=True)
    assert len(batch) == 2 and data.bad_lines.count == 1


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("click,user,thing,price,age", "column 'item' is not in the header, which has click, user"),
        ("click,user,item,item,price,age", "column 'item' is twice in the header"),
        (b"\xff,user\n", "header is no UTF-8"),
    ],
)
def test_another_header_is_refused(tmp_path: Path, header: str | bytes, said: str) -> None:
    with pytest.raises(DataError) as caught:
        Csv(write(tmp_path / "a.csv", header), COLUMNS)
    assert said in str(caught.value)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"a.pq: is a Parquet file, which needs pyarrow: pip inst"):
        Csv(write(tmp_path / "a.pq", b"PAR1" + bytes(99)), COLUMNS)


def test_parquet_is_read_as_its_text_and_goes_on_from_positions(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    number = np.arange(60_000)
    table = pyarrow.table(
        {
            "click": number % 2,
            "user": [None if i % 100 == 0 else f'u"{i % 777},' for i in number],
            "item": number * 3,
            "price": number / 7,
            "age": pyarrow.array([None, 5, -6, 7] * 15_000),
            "more": ["x"] * 60_000,
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=9_000)
    data, batches = read(tmp_path / "a.parquet")
    assert sum(map(len, batches)) == 60_000 and batches[0].dense[:4, 1].tolist() == [
        np.float32(signed_log(value)) for value in (0, 5, -6, 7)
    ]
    users = ["" if i % 100 == 0 else f'u"{i % 777},' for i in range(1000)]
    assert batches[0].feature_keys(0).tolist() == embedrock.hash_keys(users).tolist()
    items = embedrock.hash_keys((number[-1000:] * 3).astype(str))
    assert batches[-1].feature_keys(1).tolist() == items.tolist()
    for place in (0, 29, 45):
        again = next(data.train_batches(1000, batches[place].next))
        np.testing.assert_array_equal(again.keys, batches[place + 1].keys)
    whole = (tmp_path / "a.parquet").read_bytes()
    with pytest.raises(DataError, match="is no whole Parquet file"):
        Csv(write(tmp_path / "cut.parquet", whole[: len(whole) // 2]), COLUMNS)
    parquet.write_table(table.slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match="holds no samples"):
        read(tmp_path / "empty.parquet")


def test_a_column_has_one_role() -> None:
    with pytest.raises(MisuseError, match="column 'a' is named twice"):
        Columns("a", ("b", "a")).check()
    with pytest.raises(MisuseError, match="categorical names no column"):
        Columns("a", ()).check()


TRAIN = ["train", "--data", "clicks.csv.gz", "--format", "csv", "--store", "s"]
TRAIN += ["--batch-size", "256", "--epochs", "2"]


def train(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return withtorch.run(["-m", "embedrock", *TRAIN, *more], cwd=folder)


# One label and five columns could not be trained: Criteo's, Avazu's and MovieLens's files alone.
def test_train_learns_from_it_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    apps, ips = random.integers(0, 40, 4000), random.integers(0, 3000, 4000)
    clicks = random.random(4000) < np.where(apps % 2 == 0, 0.9, 0.1)
    lines = [f"{ip},{app},{int(y)},ignored" for ip, app, y in zip(ips, apps, clicks, strict=True)]
    write(tmp_path / "clicks.csv.gz", "\n".join(["ip,app,is_attributed,time", *lines]))
    columns = ["--label", "is_attributed", "--categorical", "ip,app"]
    done = train(tmp_path, *columns, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["auc"] > 0.85 and found["samples"] == 7200
    assert found["settings"]["label"] == "is_attributed"
    assert found["settings"]["categorical"] == ["ip", "app"]
    with embedrock.open(tmp_path / "s", "4MiB", read_only=True) as store:
        assert list(store.tables) == ["ip", "app"] and len(store.table("app")) == 40
        assert store.table("app").contains(embedrock.hash_keys(["0", "39", "40"])).tolist() == [
            True,
            True,
            False,
        ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main() sets it
    assert cli.main([*TRAIN, *columns, "--resume", "--epochs", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 3600
    other = ["--label", "is_attributed", "--categorical", "app", "--resume"]
    assert cli.main([*TRAIN, *other]) == 2
    said = capsys.readouterr().err
    assert "categorical is ['app'], but the run in s has ['ip', 'app']" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--format csv needs --label: for example --label click --categorical user,item"),
        (["--label", "y"], "--format csv needs --categorical"),
        (["--label", "y", "--categorical", "y"], "column 'y' is named twice"),
        (["--label", "y", "--categorical", "a,,b"], "is no list of names; example: ip,app,device"),
        (
            ["--format", "criteo", "--dense", "a"],
            "--dense is for --format csv; criteo has columns of its own",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main() sets it
    command = ["train", "--data", "no.csv", "--format", "csv", "--store", "s", *options]
    try:
        status = cli.main(command)
    except SystemExit as ended:
        status = ended.code
    assert status == 2 and said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
