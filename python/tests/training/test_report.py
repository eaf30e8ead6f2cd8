"""Reports as JSON and as HTML: the same figures in both, plots or a word on how to get them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from clicklogs import movielens_folder
from embedrock import cli, report
from embedrock.errors import MisuseError
from embedrock.report import html, plots, style
from embedrock.report.points import hit_rate, merged, time_split

_VOID = {"meta", "br", "img", "link"}


class Page(HTMLParser):
    """Checks that tags close in order, and collects table cells and where things come from."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.svgs = 0
        self.links: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            return
        self.open.append(tag)
        self.svgs += tag == "svg"
        self.links += [v or "" for k, v in attrs if k in ("src", "href") or k == "xlink:href"]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def counters(**given: Any) -> dict[str, Any]:
    names = ("rescued", "first_touches", "read_requests", "bytes_read", "bytes_written")
    rest = dict.fromkeys((*names, "rows_written", "evicted"), 0)
    return {"hits": 3, "misses": 1, "pages_read": 4, "read_wait_s": 0.5, **rest, **given}


def point(steps: int = 2, loss: float = 0.5, **given: Any) -> dict[str, Any]:
    parts = {"embedding": 1.0, "computing": 2.0, "updating": 0.25}
    return {"steps": steps, "samples": 8 * steps, "loss": loss, "seconds": 4.0, **parts, **given}


ENGINE = {"memory": {"cache_bytes": 9 << 20}, "time": {"reading": 1.5, "device_least": None}}


def a_report() -> dict[str, Any]:
    stored = {"history": [point(engine=counters())] * 2, "engine": ENGINE}
    return report.report(
        figures={"auc_out_of_core": 0.75, "auc_in_memory": 0.5, "pages_read": 1234, "none": None},
        device={"io": "uring", "curve": {"depth": 64}},
        settings={"data": "<clicks> & more"},
        results={"out_of_core": stored, "in_memory": {"history": [point()]}, "other": 1},
        notes=["a < b"],
    )


@pytest.fixture(scope="module")
def rendered() -> str:
    """Its page, drawn once: plots take most of a second."""
    return html.render(a_report(), "t")


def test_the_html_parses_and_has_the_figures_of_the_json(tmp_path: Path):
    whole = a_report()
    page_path = report.write(tmp_path / "report.json", whole, "demo & <more>")
    assert page_path == tmp_path / "report.html"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]
    stored = json.loads((tmp_path / "report.json").read_text())
    page = Page(page_path.read_text())
    shown = {row[2]: row[:2] for row in page.rows if len(row) == 3}
    assert set(stored["figures"]) <= set(shown)
    assert shown["auc_out_of_core"] == ["auc out of core", "0.75"]
    assert shown["pages_read"] == ["pages read", "1,234"]
    assert shown["none"] == ["none", "-"]
    rows = {row[0]: row[1:] for row in page.rows}
    assert rows["curve.depth"] == ["64"]
    assert rows["data"] == ["<clicks> & more"]
    place = page.rows.index(["run", "reading", "device least"])
    assert page.rows[place + 1] == ["out of core", "1.5 s", "-"]
    ((steps, samples, seconds, speed, loss, pages, *times),) = (
        row[1:] for row in page.rows if row[0] == "out of core" and len(row) > 6
    )
    assert (steps, samples, seconds, speed, loss, pages) == ("4", "32", "8 s", "4", "0.5", "8")
    assert times == ["1 s", "5 s", "500 ms", "1.5 s"]


def test_memory_is_shown_as_the_budget_is_divided():
    whole = a_report()
    budget = {"rows_bytes": 3 << 20, "index_bytes": 1 << 20, "rows_share": 0.75}
    whole["results"]["out_of_core"]["engine"] = ENGINE | {"budget": budget}
    page = Page(html.render(whole, "t"))
    place = page.rows.index(["run", "rows", "index"])
    assert page.rows[place + 1] == ["out of core", "3 MiB", "1 MiB"]


# 9 bytes were 8.58307e-06 MiB, a share 0.0123457, and a list of records Python's text of it.
def test_values_have_the_unit_of_their_name_and_digits_that_matter(rendered: str):
    page = Page(rendered)
    place = page.rows.index(["run", "cache"])
    assert page.rows[place + 1] == ["out of core", "9 MiB"]
    shown = {
        name: html._value(name, value)
        for name, value in {
            "table_bytes": 25_276_502_016,
            "wait_share": 0.0123457,
            "wait_read_s": 0.00025,
            "samples_per_s": 30196.4,
            "contest_device_ms_per_batch": 19.0731,
            "load_average": [0.5732421875, 2.0],
        }.items()
    }
    assert list(shown.values()) == [
        "23.5 GiB",
        "1.23 %",
        "250 µs",
        "30,196",
        "19.1 ms",
        "0.57324, 2",
    ]
    records = dict(html._flat({"curve": {"points": [{"depth": 1}, {"depth": 2}]}}))
    assert records == {"curve.points": "2 entries, in the JSON"}


def test_the_page_begins_with_its_headline_and_ends_with_what_to_know():
    whole = a_report()
    tiles = [{"name": "of PyTorch's speed", "value": "0.9 x", "note": "<b>"}]
    whole["results"]["headline"] = {"verdict": "It learned the same.", "tiles": tiles}
    text = html.render(whole, "t")
    order = ["It learned the same.", "0.9 x", "<svg", "All figures", "a &lt; b"]
    places = [text.index(part) for part in order if part != "<svg" or plots.available()]
    assert places == sorted(places)
    assert "&lt;b&gt;" in text and "<b>" not in text


# Tables had no scopes, plots no words, and headings none between h1 and the figures.
def test_a_screen_reader_finds_headings_cells_and_words_for_plots(rendered: str):
    levels = [int(level) for level in re.findall(r"<h(\d)", rendered)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert re.findall(r"<th(?! (?:class=\"text\" )?scope=)[ >]", rendered) == []
    svgs = re.findall(r"<svg.*?</svg>", rendered, re.DOTALL)
    for svg in svgs:
        assert svg.startswith('<svg role="img"')
        assert re.search(r"<title>.+</title><desc>.+</desc>", svg)
    ids = re.findall(r' id="([^"]+)"', rendered)
    within = [set(re.findall(r' id="([^"]+)"', svg)) for svg in svgs]
    assert len(set(ids)) == sum(map(len, within)) == len(ids)


def test_colours_follow_the_page_from_light_to_dark(rendered: str):
    pytest.importorskip("matplotlib")
    assert "@media (prefers-color-scheme: dark)" in rendered
    svgs = "".join(re.findall(r"<svg.*?</svg>", rendered, re.DOTALL))
    assert re.findall(r"(?:fill|stroke): #\w+", svgs) == []
    used = set(re.findall(r"var\((--\w+)\)", svgs))
    assert {"--run0", "--run1", "--ink", "--grid"} <= used
    light, dark = (set(re.findall(r"(--\w+):", sheet)) for sheet in (style._LIGHT, style._DARK))
    assert used <= light == dark
    assert len(light) == 5 + plots.RUN_COLORS + plots.PART_COLORS


def keys_of(svg_and_key: str) -> dict[str, str]:
    """The colour of each name in a key."""
    return {
        name: color
        for color, name in re.findall(r'--key: var\((--\w+)\)">([^<]+)</li>', svg_and_key)
    }


def test_a_name_has_one_colour_in_all_plots_and_its_key_is_text_of_the_page():
    """ "buffer" was grey in one chart and red in the next, and keys were 9 pixels on a phone."""
    pytest.importorskip("matplotlib")
    both = {"a": {"cache": 1.0, "index": 1.0, "buffer": 2.0, "staging": 1.0, "window": 3.0}}
    some = {"a": {"staging": 1.0, "buffer": 2.0}}
    drawn = [plots.split("Memory by part", parts, "MiB") for parts in (both, some)]
    whole, part = map(keys_of, drawn)
    assert list(whole) == list(both["a"]) and len(set(whole.values())) == 5
    assert part == {name: whole[name] for name in ("staging", "buffer")}
    for svg in drawn:
        assert "buffer" not in re.sub(r"<desc>.*</desc>", "", svg[svg.index("<svg") :])
    lines = plots.loss({"one": [point()], "other": [point()]})
    assert 'class="line"' in lines and 'class="dashes"' in lines


def test_a_line_that_ends_early_says_why(rendered: str):
    said = html._ends({"one": [point()] * 4, "other": [point()]}, "steps")
    assert re.fullmatch(r"a line ends with its run: one made \d+ steps, other made \d+ steps", said)
    said = html._ends({"one": [point()] * 4, "other": [point()]}, "seconds")
    assert "one trained for" in said
    assert html._ends({"one": [point()], "other": [point()]}, "seconds") == ""
    assert not plots.available() or "a line ends with its run: out of core made" in rendered


def test_runs_that_shared_the_machine_have_no_picture_of_their_speed():
    pytest.importorskip("matplotlib")
    whole = a_report()
    whole["results"] = {"quality": whole["results"], "untimed": ["quality"]}
    text = html.render(whole, "t")
    assert "Loss" in text and "Samples per second" not in text


def test_plots_are_inside_the_file_and_nothing_is_loaded(rendered: str):
    pytest.importorskip("matplotlib")
    page = Page(rendered)
    # Speed, twice; time, loss, memory, hit rate, pages.
    assert page.svgs == 7
    assert all(link.startswith("#") for link in page.links)


def test_without_matplotlib_there_are_tables_and_a_word_on_plots(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(plots, "available", lambda: False)
    text = html.render(a_report(), "t")
    page = Page(text)
    assert page.svgs == 0
    assert "pip install matplotlib" in text
    assert ["auc out of core", "0.75", "auc_out_of_core"] in page.rows


def test_a_report_name_that_is_the_html_or_in_no_folder_is_refused(tmp_path: Path):
    with pytest.raises(MisuseError, match=r"report.html, expected the name of the JSON"):
        report.check(tmp_path / "report.html")
    with pytest.raises(MisuseError, match=r"there is no folder .*nowhere"):
        report.check(tmp_path / "nowhere" / "report.json")


def test_merged_points_have_the_sums_and_the_mean_loss():
    one = point(1, 0.2, engine=counters(hits=1, misses=0))
    two = point(3, 0.6, engine=counters(hits=1, misses=2))
    both = merged(one, two)
    assert (both["steps"], both["samples"], both["seconds"]) == (4, 32, 8.0)
    assert both["loss"] == pytest.approx(0.5)
    assert hit_rate(both) == 0.5
    assert hit_rate(point()) is None


def test_waiting_for_reads_is_taken_out_of_fetching_first_then_of_updating():
    split = time_split([point(engine=counters(read_wait_s=1.2))])
    assert split == pytest.approx(
        {"waiting_for_reads": 1.2, "computing": 2.0, "updating": 0.05, "batches_and_commits": 0.75}
    )


def test_a_training_run_writes_its_report_and_long_histories_stay_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    movielens_folder(tmp_path / "ml", ratings=1500)
    command = ["train", "--data", str(tmp_path / "ml"), "--format", "movielens", "--memory"]
    command += ["64MiB", "--embedding-dim", "4", "--bottom", "8", "--top", "8", "--batch-size", "5"]
    command += ["--threads", "1", "--epochs", "2", "--store", str(tmp_path / "store")]
    command += ["--report", str(tmp_path / "run.json")]
    assert cli.main(command) == 0
    said = capsys.readouterr()
    assert "run.html" in said.err
    assert re.search(
        r"^a step: .* ms, blocked by read \d+%, computing \d+%", said.out, re.MULTILINE
    )
    assert re.search(r"^reads of a step: .*hit rate .*%, optimum .*%$", said.out, re.MULTILINE)
    stored = json.loads((tmp_path / "run.json").read_text())
    assert tuple(stored) == report.KEYS
    history = stored["results"]["training"]["history"]
    assert 100 <= len(history) <= 200
    assert sum(p["steps"] for p in history) == stored["figures"]["step"] == 540
    assert sum(p["samples"] for p in history) == stored["figures"]["samples"] == 2700
    steps = stored["results"]["training"]["step_report"]
    columns, totals = steps["columns"], steps["totals"]
    assert 20 < len(columns["step"]) <= 200  # fewer where looking takes long
    assert sum(columns["steps"]) == totals["steps"] == columns["step"][-1] == 540
    assert sum(columns["distinct_rows"]) == totals["distinct_rows"] > 540 * 5
    parts = ("blocked_by_read", "computing", "updating", "drawing", "committing")
    assert sum(totals[f"{part}_s"] for part in parts) == pytest.approx(totals["seconds"])
    assert totals["computing_s"] > totals["updating_s"] > 0 < totals["committing_s"]
    assert stored["figures"]["wait_share"] == totals["blocked_by_read_s"] / totals["seconds"]
    page = Page((tmp_path / "run.html").read_text())
    assert ["auc", f"{stored['figures']['auc']:.5g}", "auc"] in page.rows
    assert ["distinct rows", f"{totals['distinct_rows']:,}", "distinct_rows"] in page.rows
    if plots.available():
        text = (tmp_path / "run.html").read_text()
        for caption in ("Where the time of a step goes", "beside the best"):
            assert caption in text
        # If reads take next to no time, the loader never tries to announce.
        assert ("Look-ahead window" in text) == any(columns["window_batches"])
