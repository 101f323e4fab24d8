#!/usr/bin/env bash
# Plays seeds of random operations and faults in virtual time (ffi-tests/engine), from 1 on, for SECONDS:
#     tools/seeds.sh LIBRARY_FOLDER [SECONDS]
# The last line is a figure, sim_seeds_passed; a seed that fails is named, and fails.
set -euo pipefail
library=$(realpath "${1:?where is libweft_simulated.so?}")
seconds=${2:-20}
[[ $seconds =~ ^[0-9]+$ ]] || { echo "tools/seeds.sh LIBRARY_FOLDER [SECONDS]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
ln -s "$library/libweft_simulated.so" "$out/libweft.so.0"
make -s -f "$here/../ffi-tests/Makefile" OUT="$out" CC="${CC:-cc}" engine
export LD_LIBRARY_PATH=$out${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} WEFT_SEED_SECONDS=$seconds
# A minute more: for the last seed to end, or to be named if it does not.
if ! timeout -k 5 $((seconds + 60)) "$out/engine" virtual >"$out/ledger" 2>"$out/said"; then
    { cat "$out/ledger"; tr '\r' '\n' <"$out/said" | grep -v '^WEFT_SEED='; } | tail -n 40 >&2 || true
    echo "failed: $(tr '\r' '\n' <"$out/said" | grep -o '^WEFT_SEED=[0-9]*' | tail -n 1)" >&2
    exit 1
fi
cat "$out/ledger"
