#!/usr/bin/env bash
# Runs unit tests that need no libfabric in Miri (nightly Rust), which sees undefined behaviour in unsafe code, and what
# a processor with weak memory may do to code that threads share:
#     tools/miri.sh [SEEDS] [FILTER...]
# With SEEDS of 1 or more (4), those of threads run with that many schedules. About ten minutes in all. Leaves in
# target/figures: miri_tests, tests that passed, and miri_findings, those in which Miri found undefined behaviour.
set -uo pipefail
cd "$(dirname "$0")/.."
seeds=${1:-4}
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
[ $# = 0 ] || { threads=("$@") alone=(); }
failed=() tests=0 findings=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

miri() { # flags, what of cargo test
    local passed
    echo "== ${*:2}"
    MIRIFLAGS=$1 cargo +nightly miri test --locked "${@:2}" 2>&1 | tee "$log" || failed+=("${*:2}")
    # Each schedule has a line with the same number.
    passed=$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$log" | sort -n | tail -n 1)
    tests=$((tests + ${passed:-0})) findings=$((findings + $(grep -c 'error: Undefined Behavior' "$log")))
}

for filter in ${alone[@]+"${alone[@]}"}; do
    miri "$flags" -p weft --lib -- "$filter"
done
for filter in "${threads[@]}"; do
    miri "$flags -Zmiri-many-seeds=0..$seeds" -p weft --lib -- "$filter"
done
# The crate's access to memory, which needs no endpoint.
[ ${#alone[@]} = 0 ] || miri "$flags -Zmiri-many-seeds=0..$seeds" -p libweft --test words
mkdir -p target/figures
figure() { echo "$1: $2"; echo "$2" >"target/figures/$1"; }
figure miri_tests "$tests"
figure miri_findings "$findings"
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
