#!/usr/bin/env bash
# Runs tests that need no libfabric in Miri (nightly Rust), which sees undefined behaviour in unsafe code, and what a
# processor with weak memory may do to code that threads share: whole endpoints over simulated NICs
# (rust/tests/endpoints), and unit tests:
#     tools/miri.sh [SEEDS] [FILTER...]
# Endpoints, and unit tests of threads, run with SEEDS (16) schedules. About ten minutes for the rest, and one for each
# schedule and CPU. With FILTER, only endpoints' tests with that in their names. Leaves in target/figures: miri_tests,
# tests that passed with all schedules, and miri_findings, how often Miri found undefined behaviour.
set -uo pipefail
cd "$(dirname "$0")/.."
seeds=${1:-16}
shift || true
[[ $seeds =~ ^[1-9][0-9]*$ ]] || { echo "tools/miri.sh [SEEDS] [FILTER...]" >&2; exit 2; }
if ! cargo +nightly miri --version >/dev/null 2>&1; then
    if [ -n "${WEFT_NO_INSTALL:-}" ]; then
        echo "Miri is missing: rustup component add miri rust-src --toolchain nightly" >&2
        exit 1
    fi
    rustup component add miri rust-src --toolchain nightly
fi
export CARGO_TARGET_DIR=$PWD/target/miri
# Tree borrows: what crossbeam does is fine by it.
flags="-Zmiri-disable-isolation -Zmiri-tree-borrows -Zmiri-permissive-provenance"
threads=(transfer::queue transfer::gate)
alone=(codec:: status:: logging:: clock:: rail:: memory::remote fabric::host::request fabric::registry fabric::choice
    wire::address session::approach session::plan peer::gone transfer::claims transfer::geometry transfer::list)
failed=() tests=0 findings=0
log=$(mktemp)
# No file of the machine is read: Miri cannot open all of them.
export WEFT_SYSFS_ROOT
WEFT_SYSFS_ROOT=$(mktemp -d)
trap 'rm -rf "$log" "$WEFT_SYSFS_ROOT"' EXIT

miri() { # flags, what of cargo test
    echo "== ${*:2}"
    MIRIFLAGS=$1 cargo +nightly miri test --locked "${@:2}" 2>&1 | tee "$log" || failed+=("${*:2}")
    findings=$((findings + $(grep -c 'error: Undefined Behavior' "$log")))
}

scheduled() { # what of cargo test
    miri "$flags -Zmiri-many-seeds=0..$seeds" "$@"
    # Each schedule has a line with the same number.
    [ "$(grep -c '^test result: ok\.' "$log")" != "$seeds" ] ||
        tests=$((tests + $(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$log" | sort -n | head -n 1)))
}

if [ $# = 0 ]; then
    for filter in "${alone[@]}"; do
        miri "$flags" -p weft --lib -- "$filter"
    done
    for filter in "${threads[@]}"; do
        scheduled -p weft --lib -- "$filter"
    done
    # The crate's access to memory, which needs no endpoint.
    scheduled -p libweft --test words
fi
scheduled -p libweft --features sim --test endpoints -- "$@"
mkdir -p target/figures
figure() { echo "$1: $2"; echo "$2" >"target/figures/$1"; }
figure miri_tests "$tests"
figure miri_findings "$findings"
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
