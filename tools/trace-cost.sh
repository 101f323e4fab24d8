#!/usr/bin/env bash
# Instructions per slice with traces that are off, minus those of a build without traces, which goes into a folder of its
# own and is removed afterwards (some minutes). Leaves in target/figures: trace_off_instructions.
#     tools/trace-cost.sh WEFT_BENCH
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# The least of five: how many slices go in a batch depends on what else the machine does.
counted() { # weft-bench
    for _ in 1 2 3 4 5; do
        "$1" figures --only instructions_per_slice --json "$scratch/figures.json" >"$scratch/said" || { cat "$scratch/said" >&2; exit 1; }
        python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["instructions_per_slice"])' "$scratch/figures.json"
    done | sort -g | head -n 1
}
# shellcheck disable=SC2086 # flags are words
RUSTFLAGS="${RUSTFLAGS:-} --cfg weft_untraced" "${CARGO:-cargo}" build --release ${CARGO_FLAGS:-} -p weft-bench \
    --target-dir "$scratch/target"
with=$(counted "$1") without=$(counted "$scratch/target/release/weft-bench")
echo "instructions per slice: $with with traces that are off, $without without"
mkdir -p target/figures
echo "trace_off_instructions: $(awk "BEGIN { printf \"%.2f\", $with - $without }" | tee target/figures/trace_off_instructions)"
