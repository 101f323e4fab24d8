#!/usr/bin/env bash
# Plays seeds of the simulated chaos (ffi-tests/seeds.c), from 1 on, for SECONDS:
#     tools/seeds.sh LIBRARY_FOLDER [SECONDS]
# The last line is a figure, sim_seeds_passed; a seed that fails is named, and fails.
set -euo pipefail
library=$(realpath "${1:?where is libweft.so?}")
seconds=${2:-20}
[[ $seconds =~ ^[0-9]+$ ]] || { echo "tools/seeds.sh LIBRARY_FOLDER [SECONDS]" >&2; exit 2; }
cd "$(dirname "$0")/../ffi-tests"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
ln -s "$library/libweft.so" "$out/libweft.so.0"
"${CC:-cc}" -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -I../include -Iharness seeds.c harness/harness.c -o "$out/seeds" \
    "$out/libweft.so.0" -lpthread -ldl
export LD_LIBRARY_PATH=$out${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} WEFT_SEED_SECONDS=$seconds
# A minute more: for the last seed to end, or to be named if it does not.
if ! timeout -k 5 $((seconds + 60)) "$out/seeds" random_faults_lose_nothing 2>"$out/said"; then
    tr '\r' '\n' <"$out/said" | grep -v '^WEFT_SEED=' | tail -n 40 >&2 || true
    echo "failed: $(tr '\r' '\n' <"$out/said" | grep -o '^WEFT_SEED=[0-9]*' | tail -n 1)" >&2
    exit 1
fi
