#!/usr/bin/env bash
# Chaos: three hosts of four rails in network namespaces, operations of all kinds between them, and links and processes
# that fail as a seed has it (ffi-tests/engine); a ledger at the end. Needs root.
#     tools/chaos.sh LIBRARY_FOLDER [MINUTES [SEED [JSON]]]
# WEFT_CHAOS_LOG=2 prints Weft's warnings beside the faults (3: more), WEFT_CHAOS_ONLY="down kill" plays only these faults,
# WEFT_CHAOS_PACE=4 a quarter as many.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
library=$(realpath "${1:?where is libweft.so?}")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
ln -s "$library/libweft.so" "$out/libweft.so.0"
make -s -f "$here/../ffi-tests/Makefile" OUT="$out" CC="${CC:-cc}" engine
export LD_LIBRARY_PATH=$out${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
printf -v command '%q ' exec "$out/engine" namespaces "${2:-10}" "${3:-}" ${4:+"$4"}
"$here/lab.sh" --hosts 3 --rails 4 --rate 100mbit --around "$command"
