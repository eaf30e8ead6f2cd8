"""MovieLens-100K from the wheel of RecBole, downloaded by the user's own pip and kept in a cache.

Nothing here names a host: `pip download` of the running interpreter follows whatever the user has
configured (index, mirror, proxy, wheel folder). The wheel is checked against a fixed SHA-256 before
anything in it is used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from embedrock import _logs
from embedrock.data.errors import DataError

_log = _logs.of("data")

REQUIREMENT = "recbole==1.2.1"
WHEEL = "recbole-1.2.1-py3-none-any.whl"
WHEEL_SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
_FOLDER = "recbole/dataset_example/ml-100k/"
_FILES = ("ml-100k.inter", "ml-100k.user", "ml-100k.item")
_MISSING = f"MovieLens-100K (in the wheel of {REQUIREMENT}) could not be had"
_WAY_OUT = (
    "pass your own copy with --data (a folder with ml-100k.inter, ml-100k.user and ml-100k.item, "
    "or u.data, u.user and u.item), or put the wheel into the cache folder"
)


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/embedrock`, or `~/.cache/embedrock`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "embedrock"


def movielens_100k(cache_dir: str | Path | None = None) -> Path:
    """The folder of the unpacked MovieLens-100K files, downloaded on the first call.

    Errors: DataError naming what could not be had and the way out, when pip fails (no network) or
    when the file is not the expected one. Blocking: waits for pip, at most five minutes.
    """
    cache = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    folder = cache / "ml-100k"
    if all((folder / name).is_file() for name in _FILES):
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cache folder cannot be made: {error.strerror}", path=cache) from error
    wheel = cache / WHEEL
    if not wheel.is_file():
        _download(cache)
    _verify(wheel)
    _unpack(wheel, folder)
    return folder


def _download(cache: Path) -> None:
    """Runs pip into a temporary folder and moves the wheel into place when it is whole."""
    _log.info("%s is downloaded to %s, with pip", REQUIREMENT, cache)
    with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as temporary:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--disable-pip-version-check", "--dest", temporary, REQUIREMENT]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(f"{_MISSING}: {error}; {_WAY_OUT}") from error
        wheel = Path(temporary) / WHEEL
        if done.returncode != 0 or not wheel.is_file():
            said = (done.stderr or done.stdout).strip().splitlines()
            raise DataError(
                f"{_MISSING}: pip download said: {said[-1] if said else 'nothing'}; {_WAY_OUT}"
            )
        _log.info("%s is there, %d bytes", WHEEL, wheel.stat().st_size)
        wheel.replace(cache / WHEEL)


def _verify(wheel: Path) -> None:
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise DataError(
            f"has SHA-256 {found}, expected {WHEEL_SHA256}; remove it to download it again",
            path=wheel,
        )


def _unpack(wheel: Path, folder: Path) -> None:
    """Unpacks beside the final folder and renames, so that a half-written folder is never used."""
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix="unpack-"))
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in _FILES:
                (temporary / name).write_bytes(archive.read(_FOLDER + name))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"does not hold MovieLens-100K: {error}", path=wheel) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
