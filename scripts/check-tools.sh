#!/usr/bin/env bash
# Names every tool that building needs and this machine lacks, with a way to get it.
set -euo pipefail

python="${1:-python3}"
missing=0

need() {
    echo "setup: $1" >&2
    missing=1
}

if ! command -v "$python" >/dev/null; then
    need "$python not found: install Python 3.10 or newer \
(Debian: apt-get install python3 python3-venv)"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    need "$("$python" --version) found, 3.10 or newer needed: make PYTHON=/path/to/a/newer/python3"
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    need "$python lacks the venv module: apt-get install python3-venv, or make PYTHON=another"
fi
if ! command -v cargo >/dev/null; then
    need "cargo not found: install Rust 1.88 or newer with rustup"
elif ! cargo --version | awk '{ split($2, v, "."); exit !(v[1] > 1 || v[2] >= 88) }'; then
    need "$(cargo --version) found, 1.88 or newer needed: rustup update stable"
fi
if ! command -v cc >/dev/null; then
    need "cc not found: install a C compiler (Debian: apt-get install gcc)"
fi
exit "$missing"
