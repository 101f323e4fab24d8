#!/usr/bin/env bash
# How long a change takes to be judged, on this machine as it is: the figures one_test_s, one_test_rust_s, bench_build_s
# and bench_lines, which it prints and leaves in target/figures.
#     tools/loop.sh
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p target/figures target/loop
changed=src/transfer/change.rs test=transfers.pages_on_four_rails
trap 'rm -f "$changed"; git checkout -q src/transfer/mod.rs' EXIT
git diff --quiet src/transfer/mod.rs || { echo "src/transfer/mod.rs has changes: commit them first" >&2; exit 1; }

figure() { echo "$1 $2"; echo "$2" >"target/figures/$1"; }

seconds() { # COMMAND...: of the clock
    local begin=${EPOCHREALTIME/[.,]/}
    "$@" >target/loop/log 2>&1 || { cat target/loop/log; exit 1; }
    echo "$(((${EPOCHREALTIME/[.,]/} - begin) / 1000))" | awk '{ printf "%.1f", $1 / 1000 }'
}

make -s t T=$test >/dev/null
touch ffi-tests/transfer/transfers.c
figure one_test_s "$(seconds make t T=$test)"
# A function more, in a file of src/transfer.
printf '//! A change that is measured.\n#[inline(never)]\npub fn changed(x: u64) -> u64 {\n    x ^ %d\n}\n' "$RANDOM" >"$changed"
printf '#[allow(dead_code)]\npub mod change;\n' >>src/transfer/mod.rs
figure one_test_rust_s "$(seconds make t T=$test)"

# Of weft-bench, processor time beyond that of the library.
export CARGO_TARGET_DIR=$PWD/target/loop/bench
rm -rf "$CARGO_TARGET_DIR"
git checkout -q src/transfer/mod.rs
"${CARGO:-cargo}" build -q --release -p weft-simulated
figure bench_build_s "$(TIMEFORMAT='%U %S'; { time "${CARGO:-cargo}" build -q --release -p weft-bench; } 2>&1 | awk '{ print $1 + $2 }')"
rm -rf "$CARGO_TARGET_DIR"
figure bench_lines "$(git ls-files 'weft-bench/*.rs' | xargs cat | wc -l)"
