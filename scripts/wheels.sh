#!/usr/bin/env bash
# Writes the sdist and a wheel for each architecture into dist, and tries them.
#
# The wheels are built from the unpacked sdist, outside of the checkout: so the sdist is known to
# build. zig links them against an old glibc, for both architectures, on any machine.
set -euo pipefail
cd "$(dirname "$0")/.."

bin="${1:?usage: wheels.sh FOLDER_OF_PROGRAMS}"
export PATH="$bin:$PATH"  # maturin looks there for the Python that has zig
tag=manylinux_2_17
built=$PWD/.cache/sdist
cargo=${CARGO_HOME:-$HOME/.cargo}
objects=${CARGO_TARGET_DIR:-$PWD/target}/wheel

# What is left of an older build would be checked and published with this one.
rm -rf dist "$built"
mkdir -p dist "$built"
"$bin/maturin" sdist --out dist
tar -xzf dist/*.tar.gz -C "$built" --strip-components=1

for machine in x86_64 aarch64; do
    target=$machine-unknown-linux-gnu
    libraries=$(rustc --print target-libdir --target "$target")
    if ! compgen -G "$libraries/libstd-*" >/dev/null; then
        echo "wheel: NOT BUILT for $machine: Rust's library for it is not installed;" \
            "get it with: rustup target add $target" >&2
        continue
    fi
    # Neither git nor the checkout is asked for anything: the folder is the sdist's. The places of
    # panics in other crates would name the folder of the one who builds.
    (cd "$built" && GIT_DIR=/nonexistent CARGO_TARGET_DIR=$objects \
        RUSTFLAGS="--remap-path-prefix=$cargo=/cargo" \
        "$bin/maturin" build --release --locked --zig --target "$target" \
        --compatibility "$tag" --out "$OLDPWD/dist")
done
rm -rf "$built"

scripts/check-wheel.sh "$bin" "$tag" dist
