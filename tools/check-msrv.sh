#!/usr/bin/env bash
# Checks that the oldest Rust that Cargo.toml names compiles everything. Without that compiler here, it reports so and
# passes.
set -euo pipefail
cd "$(dirname "$0")/.."
oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[[ $oldest == *.*.* ]] || oldest+=.0
if ! rustup run "$oldest" cargo --version >/dev/null 2>&1; then
    echo "check-msrv: skipped: rustup has no Rust $oldest (rustup toolchain install $oldest)"
    exit 0
fi
# In a folder of its own: two compilers that share one build everything again by turns.
# shellcheck disable=SC2086 # flags are words
rustup run "$oldest" cargo check ${CARGO_FLAGS:-} --workspace --target-dir "${CARGO_TARGET_DIR:-target}/msrv"
