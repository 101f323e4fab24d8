#!/usr/bin/env bash
# Runs every target of fuzz/, one after the other, in SECONDS altogether:
#     tools/fuzz.sh [SECONDS] [TARGET...]
# With WEFT_FUZZ_RUNS=N each target runs N times instead, however long that takes.
# What it finds to be new is kept in target/fuzz-corpus; what fails, in fuzz/artifacts.
# The last line is a figure, fuzz_mexecutions: millions of executions.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-180}
shift || true
[[ $seconds =~ ^[0-9]+$ ]] || { echo "tools/fuzz.sh [SECONDS] [TARGET...]" >&2; exit 2; }
export CARGO_TARGET_DIR=$PWD/target/fuzz
tools=$PWD/target/tools
PATH=$tools/bin:$PATH:$HOME/.cargo/bin

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "A nightly Rust is missing: rustup toolchain install nightly --profile minimal" >&2
    exit 1
fi
if ! command -v cargo-fuzz >/dev/null; then
    if [ -n "${WEFT_NO_INSTALL:-}" ]; then
        echo "cargo-fuzz is missing: cargo install cargo-fuzz" >&2
        exit 1
    fi
    echo "Installing cargo-fuzz into target/tools."
    cargo install cargo-fuzz --locked --root "$tools"
fi

targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cd fuzz/fuzz_targets && printf '%s\n' *.rs | sed 's/\.rs$//')
cargo +nightly fuzz build
each=$((seconds / ${#targets[@]}))
[ "$each" -gt 0 ] || each=1
limits=(-max_total_time="$each")
[ -z "${WEFT_FUZZ_RUNS:-}" ] || limits=(-runs="$WEFT_FUZZ_RUNS")
executions=0 failed=()
for target in "${targets[@]}"; do
    kept=target/fuzz-corpus/$target
    log=target/fuzz-corpus/$target.log
    mkdir -p "$kept"
    # The first folder is the one that is written to.
    if ! cargo +nightly fuzz run "$target" "$kept" "fuzz/corpus/$target" -- \
        "${limits[@]}" -max_len=2048 -print_final_stats=1 >"$log" 2>&1; then
        failed+=("$target")
        tail -n 40 "$log"
    fi
    count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
    executions=$((executions + ${count:-0}))
    echo "$target: ${count:-0} executions"
done
awk -v n="$executions" 'BEGIN { printf "fuzz_mexecutions %.2f\n", n / 1e6 }'
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
