#!/usr/bin/env bash
# Chaos: three hosts of four rails in network namespaces, operations of all kinds between them, and links and processes
# that fail as a seed has it (ffi-tests/chaos); a ledger at the end. Needs root.
#     tools/chaos.sh LIBRARY_FOLDER [MINUTES [SEED [JSON]]]
# WEFT_CHAOS_LOG=2 prints Weft's warnings beside the faults (3: more), WEFT_CHAOS_ONLY="down kill" plays only these faults,
# WEFT_CHAOS_READS=0 or 1 leaves reads out or has them whatever libfabric this is.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
library=$(realpath "${1:?where is libweft.so?}")
tests=$here/../ffi-tests
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
ln -s "$library/libweft.so" "$out/libweft.so.0"
"${CC:-cc}" -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -I"$here/../include" -I"$tests/harness" "$tests"/chaos/*.c \
    "$tests/harness/lab.c" "$tests/harness/harness.c" -o "$out/chaos" "$out/libweft.so.0" -lpthread
export LD_LIBRARY_PATH=$out${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
printf -v command '%q ' exec "$out/chaos" "${2:-10}" "${3:-}" ${4:+"$4"}
"$here/lab.sh" --hosts 3 --rails 4 --rate 100mbit --around "$command"
