#!/usr/bin/env bash
# Runs the structures that threads share in every order that the threads can take, by loom:
#     tools/loom.sh [FILTER...]
# A minute, most of it building.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=$PWD/target/loom
# shellcheck disable=SC2086 # flags are words
exec "${CARGO:-cargo}" test ${CARGO_FLAGS:---locked} --manifest-path loom/Cargo.toml -- "$@"
