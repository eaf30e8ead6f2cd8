"""The scripts in `examples`, which are those of the tutorial and of the pages in `docs/how-to`."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import embedrock
import withtorch
from places import ROOT

EXAMPLES = ROOT / "examples"
NEEDS_TORCH = {
    "average_weights",
    "bring_a_model",
    "commit_and_resume",
    "commit_with_ranks",
    "change_tables",
    "convert_model",
    "dataframes",
    "knowledge_graph",
    "look_ahead",
    "pack_graph_features",
    "restore_best",
    "recommend_items",
    "train_at_a_server",
    "schedule_epochs",
    "tutorial_read",
    "tutorial_service_pull",
    "tutorial_service_train",
    "tutorial_train",
    "workers",
}

NEEDS = {
    "dataframes": "pyarrow",
    "graph_from_files": "torch_geometric",
    "hf_trainer": "transformers",
    "lightning_trainer": "pytorch_lightning",
    "object_storage": "obstore",
    "rows_in_parquet": "pyarrow",
    "torchrec_model": "torchrec",
    "train_on_a_graph": "torch_geometric",
}
"""Other libraries, which `make adapters` has, but for TorchRec."""

OF_RANKS = {"ranks"}
"""Programs of several processes."""

NEEDS_BROKER = {"follow_a_topic", "publish_changes"}
"""Run by test_kafka.py, which has one."""

TUTORIALS = {
    "tutorial_train",
    "tutorial_read",
    "tutorial_clicks",
    "tutorial_serve",
    "tutorial_service_train",
    "tutorial_service_pull",
}

SAYS = {
    "bring_a_model": r"largest difference 0\.0\n",
    "change_stream": (
        r"ads 100 rows, 0 deleted\nads 0 rows, 1 deleted\nstep 2 row 0 is 0\.5\n"
        r"served\.store: at step 3 of ads\.store, 5 rows and 0 deletes in 1 commits\n"
    ),
    "change_tables": r"1500 ids, 1500 rows trained, old rows the same: True\n"
    r"\['products'\] at step 3\n",
    "choose_memory": r"(\d+% is .* MiB: \d+% of the rows were in memory, \d+% at best\n){3}",
    "cluster": (
        r"\[1\. 1\. 1\. 0\.\] \[ True  True  True False\]\n"
        r"\[0\.75 0\.75 0\.75\] at step 2\nended with \[0, 0, 0\]\n"
    ),
    "commit_and_resume": (
        r"\[\(20, .*\), \(30, .*\)\]\nbegan behind step 0\n"
        r"\[\(40, .*\), \(50, .*\)\]\nbegan behind step 30\n"
    ),
    "commit_with_ranks": (
        r"2 ranks begin at step 0\nrank 1 ended by SIGKILL\n2 ranks begin at step 3\n"
        r"\d+ rows at step 8 for 3 ranks\n3 ranks begin at step 8\n"
    ),
    "convert_model": (
        r"\{'items': Embedding\(10000000, 64, name='items', optimizer='rowwise_adagrad'\)\}\n"
        r"6[34]\d rows were trained, and none of the others was ever written\n"
    ),
    "dataframes": (
        r"(9\d|100)% of 2,000 held-out clicks are right\n"
        r"\[300, 20\] users and tags have rows\nof u7: \(1, 8\)\n"
    ),
    "follow_a_log": (
        r"3 records, commit at step 3\nrow 0 is 0\.5\n"
        r"ads\.store: commit at step 4, 1 records with 1 rows; 0 B behind\n"
    ),
    "freeze_and_serve": (
        r"plain\.store: 1[0-5]\.\d pages a query of 15 rows\n"
        r"placed\.store: [1-4]\.\d pages a query of 15 rows\n"
    ),
    "go_back": r"kept \[1, 2, 3, 4\] best 2\nlooked at 2 2\.0\nkept \[1, 2, 3\]\n",
    "graph_from_files": (
        r"trained and committed: .*nodes\.store, step 25\n"
        r"keys of its tables: ids as they stand in the data\n6,000 samples, .* samples/s\n"
        r"valid: accuracy 0\.9\d+ of 400 nodes\ntest: accuracy 0\.9\d+ of 400 nodes\n"
        r"step 25: tables features\.x, nodes\n"
        r"(1,9\d\d|2,000) of 2,000 nodes have learned 64 values\n"
    ),
    "knowledge_graph": r"MRR 0\.[1-4]\d, Hits@10 0\.[5-9]\d, 1 scan of the table\n",
    "average_weights": r"the average has learned: True\nrows are shared: True\n",
    "hf_trainer": r"(?s:.*)trained to step 32 and back to that of step (4|8|12|16|20|24|28)\n",
    "lightning_trainer": r"trained to step 32\nrows of the best, step (4|8|12|16|20|24|28)\n",
    "logs": (
        r"INFO embedrock\.store: .*/logs\.store: opened to write at no commit, 0 tables.*\n"
        r"DEBUG embedrock\.commit: .*/logs\.store: committed step 1 \(commit 1\), 1000 rows.*\n"
        r"INFO embedrock\.store: .*/logs\.store: closed\n"
    ),
    "look_ahead": r"announced \d+ of 100 batches\npassed over \d+\n",
    "move_or_copy": (
        r"copied step 1 with 10000 rows\ncopied\.store is at step 1 and equal\n"
        r"moved\.store is at step 2 and different\n"
    ),
    "move_a_bucket": r"b is at step 2\nmoved: True\nalways the same rows: True\n",
    "object_storage": (
        r"sent little for step 2\npushed steps \[1, 2\]\nrestored step 1 is equal\npruned 1\n"
    ),
    "pack_graph_features": (
        r"12000 nodes, 4 batches of 2[34]\d\d rows\n"
        r"frozen by .*\n"
        r"order of ids +0% +13\d\d\.\d +1\.\d\d .*\norder of ids +10% .*\n"
        r"other batches +0% +12\d\d\.\d +1\.\d\d .*\nother batches +10% .*\n"
        r"these batches +0% +34\d\.\d +6\.9\d .*\nthese batches +10% +30\d\.\d .*\n"
        r"copies +0% +34\d\.\d +6\.9\d .*\ncopies +10% +24\d\.\d .*\n"
        r"accuracy (0\.[89]\d\d), in memory \1, same bits: True\n"
    ),
    "pins": r"kept \[4, 5\] pinned \{'best': 3\}\nback at 3 0\.4\n",
    "record_trace": (r"1250 of 5000 requests, 1286 had no room\n1250 queries of 20 keys at most\n"),
    "persistent_memory": (
        r"refused: table 'users' has 1000 rows in a region for 1000\nroom for 10000 rows\n"
        r"1000 rows, the changed ones too: True\n2 hot keys are where look-ups begin\n"
    ),
    "recommend_items": (
        r"(epoch \d+: loss \d+\.\d+\n){3}"
        r"Recall@20 (1\.0000|0\.9\d+) of 1,000 users, 600 items ranked\n"
    ),
    "restore_best": (
        r"refused: call store\.go_back\(1\) first\n<All keys matched successfully> at step 1\n"
    ),
    "server": (r"\[1\. 1\. 0\.\] \[ True  True False\]\n0\.5 at step 2\nended with 0\n"),
    "rows_in_parquet": (
        r"\['key', 'embedding', 'state'\]\nequal, state too: True\n59 rows of small keys\n"
    ),
    "schedule_epochs": (
        r"\d\d,\d\d\d pages without a schedule, \d\d?,\d\d\d with one\nthe same rows: True\n"
    ),
    "serve": r"step 2: row 7 is 0\.75\nstep 3: row 7 is 0\.5\n",
    "torchrec_model": r"loss 0\.[5-9]\d to 0\.[0-3]\d\n",
    "train_on_a_graph": (
        r"accuracy 0\.9\d of nodes that were not trained\ntables features\.x, nodes\n"
    ),
    "train_at_a_server": (
        r"the first batch: loss 0\.[56]\d\n(trainer \d, its last batch: loss 0\.00\d\d\n){2}"
        r"committed at step 150\n"
    ),
    "when_something_breaks": (
        r"BudgetError: .* give at least memory=.+\n"
        r"LockedError: .*broken\.store is open in this process .*\n"
        r"FullError: [1-9]\d* times, and a commit made room\n"
        r"1 problem: rows-0, page \d+ .*\nCorruptError: rows-0, page \d+ .*\n"
        r"back at step 1 with 1\.0\nor a copy, at step 2 with 2\.0\n"
    ),
    "workers": r"the parent's store is not the child's\na store of its own has 1000 rows\n",
}


def words(script: str, *arguments: str) -> list[str]:
    return [str(EXAMPLES / f"{script}.py"), *arguments]


def environment() -> dict[str, str]:
    """One thread of PyTorch: the scripts are small, and other tests run beside them."""
    package = str(Path(embedrock.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1"}


def run(folder: Path, script: str, *arguments: str) -> str:
    """Output of a script. One with PyTorch is a child of a process that has imported it."""
    command = words(script, *arguments)
    if script in NEEDS_TORCH:
        done = withtorch.run(command, cwd=folder, env=environment())
    else:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_script_is_run_here() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert scripts == {*SAYS, *TUTORIALS, *NEEDS_BROKER, *OF_RANKS}


LONG = {"average_weights", "bring_a_model", "choose_memory", "schedule_epochs"}
"""Scripts that train for ten seconds or more: `make contests` runs them."""


@pytest.mark.parametrize(
    "script",
    [pytest.param(one, marks=[pytest.mark.long] if one in LONG else []) for one in sorted(SAYS)],
)
def test_a_script_runs_and_says_what_its_page_says(script: str, tmp_path: Path) -> None:
    if script in NEEDS_TORCH:
        pytest.importorskip("torch")
    if script in NEEDS and importlib.util.find_spec(NEEDS[script]) is None:
        pytest.skip(f"{NEEDS[script]} is not installed")
    said = run(tmp_path, script)
    assert re.fullmatch(SAYS[script], said), said


def start_ranks(folder: Path) -> list[withtorch.Process]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = {**environment(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        withtorch.Process(
            words("ranks"), cwd=folder, env={**given, "RANK": str(rank), "WORLD_SIZE": "2"}
        )
        for rank in range(2)
    ]


@pytest.mark.long
def test_ranks_train_together_are_killed_and_go_on_together(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    first = start_ranks(tmp_path)
    said = [first[0].stdout.readline() for _ in range(3)]
    for process in first:
        process.kill()
        process.communicate()
    assert said[0] == "rank 0 of 2 goes on at step 0\n"
    assert re.fullmatch(r"rank 0 of 2: step 40, loss 0\.\d{3}, saved\n", said[2]), said

    counts = []
    for rank, told in enumerate([one.communicate()[0] for one in start_ranks(tmp_path)]):
        begun, *lines, last = told.splitlines()
        at = int(begun.removeprefix(f"rank {rank} of 2 goes on at step "))
        assert at in (40, 60)  # the kill may come after another save
        for line in lines:
            assert re.fullmatch(rf"rank {rank} of 2: step 60, loss 0\.0[0-9]{{2}}, saved", line), (
                told
            )
        assert len(lines) == (at == 40)
        found = re.fullmatch(
            rf"rank {rank} of 2: {5 * rank} batches left out, (\d+) of (\d+) rows here", last
        )
        assert found, told
        counts.append([int(number) for number in found.groups()])
    assert counts[0][0] + counts[1][0] == counts[0][1] == counts[1][1]


@pytest.mark.long
def test_the_tutorial_trains_is_killed_goes_on_and_is_read(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with withtorch.Process(words("tutorial_train"), cwd=tmp_path, env=environment()) as trainer:
        said = [trainer.stdout.readline() for _ in range(2)]
        trainer.send_signal(signal.SIGKILL)
    assert said[0] == "0 steps are done\n"
    assert re.fullmatch(r"step 250: loss 0\.\d+, committed\n", said[1])

    first, *steps = run(tmp_path, "tutorial_train", "1000").splitlines()
    done = int(first.removesuffix(" steps are done"))
    assert done in (250, 500)  # the kill may come after another commit
    assert [line.split(":")[0] for line in steps] == [
        f"step {n}" for n in range(done + 250, 1001, 250)
    ]
    assert float(steps[-1].split()[3].rstrip(",")) < 0.6

    read = run(tmp_path, "tutorial_read")
    assert re.search(r"dense of 200000, rowwise_adagrad", read)
    assert re.search(r"after 1000 steps the chance of a click is (0\.[5-9]|1\.)", read)
    assert (tmp_path / "items.npy").stat().st_size > 200_000 * 32 * 4


@pytest.mark.long
def test_the_serving_tutorial_makes_a_log_places_freezes_and_serves(tmp_path: Path) -> None:
    said = run(tmp_path, "tutorial_clicks")
    assert said == "30,000 sessions in clicks.txt, 20,000 rows trained in 30 steps\n"
    page = (ROOT / "docs" / "tutorial-serving.md").read_text()
    lines = re.findall(r"^embedrock (\w+ .*)$", page, re.MULTILINE)
    commands = [line.split()[0] for line in lines]
    assert commands == ["trace", "place", "freeze", "freeze", "bench", "bench"]
    for line in lines[:4]:
        done = subprocess.run(
            [sys.executable, "-m", "embedrock", *line.split()],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        first = done.stdout.splitlines()[0]
        assert first in page or line.startswith("freeze"), "the page says what the command prints"
    served = re.fullmatch(
        r"plain\.store: (\d\.\d\d) pages for the 12 rows of a query\n"
        r"placed\.store: (\d\.\d\d) pages for the 12 rows of a query\n"
        r"both give the same rows\n",
        run(tmp_path, "tutorial_serve"),
    )
    assert served is not None
    plain, placed = float(served[1]), float(served[2])
    assert placed < 0.6 * plain


@pytest.mark.long
def test_the_service_tutorial_trains_serves_pulls_and_moves_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    page = (ROOT / "docs" / "tutorial-service.md").read_text()
    (serve,) = re.findall(r"^embedrock (serve .*)$", page, re.MULTILINE)
    options = serve.replace(":6380", ":0").replace(":9121", ":0").split()
    assert options.count("127.0.0.1:0") == 2
    said = run(tmp_path, "tutorial_service_train")
    assert said == "steps 0 to 30: 5,000 rows committed\n" and said in page
    with subprocess.Popen(
        [sys.executable, "-m", "embedrock", *options],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split("serving at ")[1].split(",")[0]
            metrics = server.stdout.readline().split()[-1]
            counts = []
            for steps in (30, 600):
                if steps > 30:
                    said = run(tmp_path, "tutorial_service_train", str(steps))
                    assert said == "steps 30 to 600: 5,000 rows committed\n" and said in page
                with embedrock.connect(f"redis://{address}") as remote:
                    remote.refresh()
                told = run(tmp_path, "tutorial_service_pull", f"redis://{address}")
                found = re.fullmatch(
                    r"row 17 begins with \[.*\] written: \[ True  True  True\]\n"
                    r"(\d+) of the 20 best are of the basket's kind\n",
                    told,
                )
                assert found is not None, told
                counts.append(int(found[1]))
                with urllib.request.urlopen(metrics) as answer:
                    assert f"embedrock_store_commit_step {steps}.0\n" in answer.read().decode()
            assert counts[0] < 15 and counts[1] == 20
        finally:
            server.terminate()


def test_every_block_of_python_in_the_tutorial_and_the_how_to_pages_is_a_script() -> None:
    pages = [*(ROOT / "docs").glob("tutorial*.md"), *(ROOT / "docs" / "how-to").glob("*.md")]
    opened = [
        (page.name, line)
        for page in pages
        for line in page.read_text().splitlines()
        if line.startswith("```py")
    ]
    named = re.compile(r'```python title="examples/(\w+)\.py"')
    found = [match[1] for _, line in opened if (match := named.fullmatch(line))]
    # A few lines for each of several libraries, which python/tests/adapters and test_data_arrow run
    # where these are installed.
    bare = [page for page, line in opened if not named.fullmatch(line)]
    assert {*bare} <= {"convert.md", "dataframes.md"}
    assert sorted(found) == sorted({*SAYS, *TUTORIALS, *NEEDS_BROKER, *OF_RANKS})
