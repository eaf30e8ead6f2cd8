"""The commands that the laboratory adds to the command line."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from embedrock import cli
from embedrock_lab.bench import BENCHES, load
from embedrock_lab.bench.options import add_options


@pytest.mark.parametrize("command", [["demo"], ["bench", "demo", "--criteo-shaped"]])
def test_without_torch_commands_say_what_to_install(command: list[str]) -> None:
    script = "import sys; sys.modules['torch'] = None\n"
    script += "from embedrock.cli import main\nsys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, *command], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and done.stdout == ""
    name = " ".join(part for part in command if not part.startswith("-"))
    assert done.stderr == f"embedrock: error: embedrock {name} needs PyTorch: pip install torch\n"


@pytest.mark.parametrize("command", ["bench", "demo"])
def test_commands_have_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: embedrock {command}")


# It called itself by the name of a module, and half of its options had no help.
@pytest.mark.parametrize("name", list(BENCHES))
def test_help_of_a_benchmark_has_its_name_and_every_option(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", name, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and shown.startswith(f"usage: embedrock bench {name} ")
    one = argparse.ArgumentParser()
    add_options(one, load(name).Options)
    assert [action.option_strings for action in one._actions if not action.help] == []


def test_an_unknown_benchmark_lists_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "speed-of-light"]) == 2
    assert "no benchmark 'speed-of-light', expected one of gather" in capsys.readouterr().err
