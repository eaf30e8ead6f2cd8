#!/usr/bin/env bash
# Names every system package that building the peers of the benchmarks needs and this machine lacks.
# check-peers.sh [CHECKOUT]: with a checkout of FASTER, what that needs too.
set -euo pipefail

missing=0

need() {
    echo "peers: $1" >&2
    missing=1
}

if ! command -v cargo >/dev/null; then
    need "cargo not found: install Rust 1.91 or newer with rustup"
elif ! cargo --version | awk '{ split($2, v, "."); exit !(v[1] > 1 || v[2] >= 91) }'; then
    need "$(cargo --version) found, 1.91 or newer needed: rustup update stable"
fi
if ! command -v c++ >/dev/null; then
    need "c++ not found: install a C++20 compiler (Debian: apt-get install g++)"
fi
if ! command -v pkg-config >/dev/null; then
    need "pkg-config not found (Debian: apt-get install pkg-config)"
elif ! pkg-config --exists liburing; then
    need "liburing's headers not found (Debian: apt-get install liburing-dev)"
fi
found=
for folder in /usr/lib* /usr/lib*/* /usr/lib*/llvm*/lib*; do
    for library in "$folder"/libclang*.so*; do
        [ -e "$library" ] && found=yes
    done
done
if [ -z "${LIBCLANG_PATH:-}${found}" ]; then
    need "libclang not found: RocksDB's binding is made with it \
(Debian: apt-get install libclang-dev, or LIBCLANG_PATH=/path/to/its/folder)"
fi
if [ -n "${1:-}" ]; then
    if [ ! -f "$1/cc/src/core/faster.h" ]; then
        need "$1 has no cc/src/core/faster.h: FASTER= wants a checkout of microsoft/FASTER"
    fi
    for header in libaio.h uuid/uuid.h tbb/concurrent_queue.h; do
        if ! echo "#include <$header>" | c++ -fsyntax-only -x c++ - 2>/dev/null; then
            need "$header not found (Debian: apt-get install libaio-dev uuid-dev libtbb-dev)"
        fi
    done
fi
exit "$missing"
