#!/usr/bin/env bash
# Tries what is in a folder of wheels and the sdist, as a stranger would install it.
#
# The machine's own wheel goes into a fresh environment, with NumPy alone, and keeps a store there.
# Wheels of other machines are looked at only: what they need of the system, and what is in them.
set -euo pipefail

usage="usage: check-wheel.sh FOLDER_OF_PROGRAMS TAG DIST"
bin="${1:?$usage}" tag="${2:?$usage}" dist="${3:?$usage}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "wheel: $1" >&2
    exit 1
}

"$bin/twine" check --strict "$dist"/*

sdist=$(compgen -G "$dist/*.tar.gz") || fail "there is no sdist in $dist"
tar -tzf "$sdist" | cut -d / -f 2- >"$scratch/files"
for file in Cargo.lock Cargo.toml LICENSE pyproject.toml python/README.md crates/core/src/lib.rs \
    crates/python/src/lib.rs python/embedrock/py.typed python/embedrock/_core.pyi; do
    grep -qxF "$file" "$scratch/files" || fail "$sdist lacks $file"
done
bytes=$(stat -c %s "$sdist")
((bytes < 2000000)) || fail "$sdist is $bytes bytes, expected less than 2 MB: what came in?"

for wheel in "$dist"/*.whl; do
    machine=${wheel##*"${tag}_"}
    machine=${machine%%.*}
    shown=$("$bin/auditwheel" show "$wheel" | tr '\n' ' ')
    [[ $shown == *"following platform tag: \"${tag}_$machine\""* ]] ||
        fail "$wheel is not for ${tag}_$machine: $shown"
    "$bin/python" - "$wheel" "$PWD" "${CARGO_HOME:-$HOME/.cargo}" <<'EOF'
import sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    names = wheel.namelist()
    folders = [folder.encode() for folder in sys.argv[2:]]
    named = [name for name in names if any(folder in wheel.read(name) for folder in folders)]
for end in ("_core.abi3.so", "_core.pyi", "py.typed", "licenses/LICENSE"):
    if not any(name.endswith(end) for name in names):
        sys.exit(f"wheel: {sys.argv[1]} lacks {end}")
if laboratory := [name for name in names if name.startswith("embedrock_lab")]:
    sys.exit(f"wheel: {sys.argv[1]} has the laboratory: {laboratory}")
if named:
    sys.exit(f"wheel: {sys.argv[1]} names the folders it was built in: {named}")
EOF
done

own=$(compgen -G "$dist/*_$(uname -m).whl") ||
    fail "there is no wheel for this machine ($(uname -m)) in $dist"
python=$scratch/environment/bin/python
"$bin/python" -m venv --without-pip "$scratch/environment"
"$bin/uv" pip install --quiet --python "$python" --only-binary :all: "$own"
installed=$("$bin/uv" pip freeze --quiet --python "$python" | sed 's/[ =].*//' | sort | xargs)
[[ $installed == "embedrock numpy" ]] || fail "the wheel brought $installed, expected numpy alone"

cd "$scratch"
"$python" -I -W ignore - <<'EOF'
import numpy as np

import embedrock

keys, rows = np.array([3, 1, 4]), np.arange(12, dtype=np.float32).reshape(3, 4)
with embedrock.open("a.store", memory="64MiB") as store:
    table = store.table("items", 4, initializer=0.0)
    table.put(keys, rows)
    store.commit(1)
    table.put(keys, rows + 1)  # is not committed, and is gone
with embedrock.open("a.store", memory="64MiB", create=False) as store:
    table = store.table("items")
    assert store.step == 1, store.step
    assert np.array_equal(table.get(keys), rows), table.get(keys)
EOF
embedrock=$scratch/environment/bin/embedrock
"$embedrock" check a.store
said=$("$embedrock" train --data a --format criteo --store s 2>&1 || true)
[[ $said == *"pip install torch"* ]] ||
    fail "embedrock train does not say what it lacks"
echo "wheel: $(basename "$own") keeps a store in an environment of its own"
