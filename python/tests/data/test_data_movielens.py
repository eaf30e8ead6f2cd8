from __future__ import annotations

import gzip
import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import pytest

from clicklogs import movielens_folder
from embedrock.data import DataError, crosses, fetch, movielens
from embedrock.data.hashing import combine


def test_ratings_are_in_order_of_time_with_users_and_items_joined(tmp_path: Path):
    folder = movielens_folder(tmp_path / "ml")
    shuffled = (folder / "u.data").read_text().splitlines()
    np.random.default_rng(0).shuffle(shuffled)
    (folder / "u.data").write_text("\n".join(shuffled) + "\n")
    r = movielens.read(folder)
    assert (np.diff(r.timestamp) > 0).all()
    assert r.users is not None and r.items is not None
    np.testing.assert_array_equal(r.users.age, 18 + r.user % 50)
    np.testing.assert_array_equal(r.items.year, 1950 + r.item % 50)
    one = slice(r.items.genre_offsets[0], r.items.genre_offsets[1])
    names = movielens._GENRES_100K
    expected = {names[r.item[0] % 19], names[r.item[0] * 7 % 19]}
    assert set(r.items.genres[one].tolist()) == {movielens.token_code(g) for g in expected}


def forms(folder: Path) -> dict[str, Path]:
    """The same ratings in each published form."""
    rows = [line.split("\t") for line in (folder / "u.data").read_text().splitlines()]
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    written = {
        "a.inter": header + "".join("\t".join(row) + "\n" for row in rows),
        "ratings.dat": "".join("::".join(row) + "\n" for row in rows),
        "ratings.csv": "userId,movieId,rating,timestamp\n"
        + "".join(",".join(r) + "\n" for r in rows),
        "mine.txt": "".join("\t".join(row) + "\n" for row in rows),
    }
    for name, text in written.items():
        (folder / name).write_text(text)
    packed = folder / "packed.inter.gz"
    packed.write_bytes(gzip.compress(written["a.inter"].encode()))
    return {name: folder / name for name in [*written, packed.name]}


def test_every_published_form_gives_the_same_ratings(tmp_path: Path):
    folder = movielens_folder(tmp_path / "ml", ratings=300)
    expected = movielens.read(folder / "u.data")
    for name, path in forms(folder).items():
        found = movielens.read(path)
        for column in ("user", "item", "rating", "timestamp"):
            np.testing.assert_array_equal(
                getattr(found, column), getattr(expected, column), err_msg=name
            )


def test_titles_give_years_and_genres_where_the_items_file_has_them_there(tmp_path: Path):
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,7,4.5,100\n")
    (tmp_path / "movies.csv").write_text(
        'movieId,title,genres\n7,"American President, The (1995)",Comedy|Drama\n'
    )
    r = movielens.read(tmp_path)
    assert r.items is not None and r.items.year.tolist() == [1995]
    assert r.items.genres.tolist() == [movielens.token_code(g) for g in ("Comedy", "Drama")]
    assert r.users is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1\t2\t3", "3 fields, expected 4"),
        ("1\t2\tgood\t4", "could not convert"),
        ("1\ttwo\t3\t4", "invalid literal"),
        ("1\t2\t99\t4", "rating is 99, expected 0 to 10"),
    ],
)
def test_a_malformed_rating_is_reported_with_its_line_or_skipped(
    tmp_path: Path, line: str, problem: str
):
    path = tmp_path / "u.data"
    path.write_text(f"1\t2\t3\t4\n{line}\n5\t6\t1\t8\n")
    with pytest.raises(DataError, match=f"u.data, line 2: .*{problem}"):
        movielens.read(path)
    read = movielens.read(path, skip_bad_lines=True)
    assert read.user.tolist() == [1, 5]
    assert read.bad_lines.count == 1


def test_a_malformed_users_line_names_the_users_file(tmp_path: Path):
    folder = movielens_folder(tmp_path / "ml")
    with (folder / "u.user").open("a") as file:
        file.write("99|old|M\n")
    with pytest.raises(DataError, match=r"u.user, line 61: 3 fields, expected 5"):
        movielens.read(folder)


def test_a_folder_without_ratings_says_what_it_looked_for(tmp_path: Path):
    with pytest.raises(DataError, match=r"holds none of ml-100k.inter, u.data"):
        movielens.read(tmp_path)


def test_a_click_is_a_rating_of_four_or_more_and_the_last_in_time_are_held_out(tmp_path: Path):
    r = movielens.read(movielens_folder(tmp_path / "ml"))
    data = crosses.click_dataset(r, holdout=0.2)
    np.testing.assert_array_equal(data.labels, (r.rating >= 4).astype(np.float32))
    assert data.num_test == len(r.user) // 5
    test = np.concatenate([b.labels for b in data.test_batches(64)])
    np.testing.assert_array_equal(test, data.labels[-data.num_test :])


def test_no_feature_of_a_sample_depends_on_later_ratings(tmp_path: Path):
    r = movielens.read(movielens_folder(tmp_path / "ml"))
    whole = crosses.click_dataset(r)
    lines = (tmp_path / "ml" / "u.data").read_text().splitlines()
    (tmp_path / "ml" / "u.data").write_text("\n".join(lines[:1000]) + "\n")
    early = crosses.click_dataset(movielens.read(tmp_path / "ml"))
    np.testing.assert_array_equal(early.dense, whole.dense[:1000])
    for one, other in zip(early.columns, whole.columns, strict=True):
        np.testing.assert_array_equal(one.keys, other.head(1000))


def test_without_users_and_items_only_their_features_are_left_out(tmp_path: Path):
    folder = movielens_folder(tmp_path / "ml")
    (folder / "u.user").unlink()
    (folder / "u.item").unlink()
    data = crosses.click_dataset(movielens.read(folder))
    names = {feature.name for feature in data.features}
    assert {"user", "item", "user_x_item"} <= names
    assert not {"age", "genres", "item_x_age_x_gender"} & names


def test_crossed_keys_follow_their_parts_and_their_order():
    a, b = np.arange(1000), np.arange(1000)[::-1].copy()
    np.testing.assert_array_equal(combine(a, b), combine(a, b))
    assert len(np.unique(combine(a, b))) == 1000
    assert not np.any(combine(a, b) == combine(b, a))


def fake_wheel(folder: Path) -> bytes:
    """A wheel of the right name with tiny MovieLens files, as pip accepts it."""
    wheel = folder / fetch.WHEEL
    info = "recbole-1.2.1.dist-info/"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in fetch._FILES:
            archive.writestr(fetch._FOLDER + name, f"{name}\n")
        archive.writestr(
            info + "METADATA", "Metadata-Version: 2.1\nName: recbole\nVersion: 1.2.1\n"
        )
        archive.writestr(
            info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(info + "RECORD", "")
    return wheel.read_bytes()


@pytest.fixture
def offline_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip as a user without a network has it: an empty folder of wheels, no index."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this interpreter has no pip")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


def test_offline_the_error_names_what_is_missing_and_the_way_out(offline_pip: Path, tmp_path: Path):
    with pytest.raises(
        DataError, match=r"MovieLens-100K .*recbole==1.2.1.* could not be had.*--data"
    ):
        fetch.movielens_100k(tmp_path / "cache")


def test_the_wheel_is_taken_by_pip_verified_and_cached(
    offline_pip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import hashlib

    content = fake_wheel(offline_pip)
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(content).hexdigest())
    folder = fetch.movielens_100k(tmp_path / "cache")
    assert sorted(p.name for p in folder.iterdir()) == sorted(fetch._FILES)
    (offline_pip / fetch.WHEEL).unlink()
    assert fetch.movielens_100k(tmp_path / "cache") == folder
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == ["ml-100k", fetch.WHEEL]


def test_another_wheel_than_the_expected_one_is_refused(offline_pip: Path, tmp_path: Path):
    fake_wheel(offline_pip)
    with pytest.raises(DataError, match=r"has SHA-256 .* expected 9c99"):
        fetch.movielens_100k(tmp_path / "cache")
    assert not (tmp_path / "cache" / "ml-100k").exists()
