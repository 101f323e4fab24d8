#!/usr/bin/env bash
# Runs unit tests that need no libfabric in Miri (nightly Rust), which sees undefined behaviour in unsafe code, and what
# a processor with weak memory may do to code that threads share:
#     tools/miri.sh [SEEDS] [FILTER...]
# With SEEDS of 1 or more (4), those of threads run with that many schedules. About ten minutes in all.
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
failed=()

miri() { # flags, filter
    echo "== $2"
    MIRIFLAGS=$1 cargo +nightly miri test --locked -p weft --lib -- "$2" || failed+=("$2")
}

for filter in ${alone[@]+"${alone[@]}"}; do
    miri "$flags" "$filter"
done
for filter in "${threads[@]}"; do
    miri "$flags -Zmiri-many-seeds=0..$seeds" "$filter"
done
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
