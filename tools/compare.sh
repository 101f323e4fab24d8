#!/usr/bin/env bash
# Weft beside NIXL and Mooncake: the same work through each one's Python API, in turns. A table, target/compare.json, charts.
#     tools/compare.sh LIBRARY_FOLDER
# ROUNDS=5 turns; SHORT=1: fewer sizes; FABRICS="host tcp lab"; RECORD=1: docs/ gets the figures and the charts. Every
# piece of a minute or so is run behind the words of COMPARE_RUN, if there are any.
set -euo pipefail
cd "$(dirname "$0")/.."
library=$(realpath "${1:?where is libweft.so?}")/libweft.so
rounds=${ROUNDS:-$([ -n "${SHORT:-}" ] && echo 2 || echo 5)}
nixl=1.5.1
# shellcheck source=tools/nixl-wheels.sh
. tools/nixl-wheels.sh
# shellcheck source=tools/lab.sh
. tools/lab.sh

say() { printf '%s  %s\n' "$(date +%T)" "$*" >&2; }

say "The peers: NIXL $nixl and Mooncake, into target/nixl/$nixl"
environment "$nixl"
venv=$PWD/target/nixl/$nixl
mooncake "$nixl" || say "Mooncake cannot be installed: its cells say so"
# Its LIBFABRIC backend, as it was in 1.4.1: 1.5.1 needs a newer libfabric than Debian has.
if environment 1.4.1 && why=$(tools/nixl-libfabric.sh make); then
    export NIXL_LIBFABRIC="$PWD/tools/nixl-libfabric.sh $PWD/target/nixl/1.4.1/bin/python"
else
    say "NIXL's LIBFABRIC backend has the system's libfabric: $why"
fi
mkdir -p target/compare
rm -rf target/compare/pieces
cc -std=c11 -O2 -Wall -Wextra tools/compare/limits.c -o target/compare/limits
python3 python/build_native.py
export WEFT_LIBRARY=$library PYTHONPATH=$PWD/python/src PYTHONDONTWRITEBYTECODE=1 NIXL_LOG_LEVEL=ERROR NIXL_BACKEND=UCX

piece() { # what, fabric, round
    local words=("$venv/bin/python" tools/compare/compare.py "$@") run
    read -ra run <<<"${COMPARE_RUN:-}"
    if [ "$2" = lab ]; then
        words=(tools/lab.sh --rails 4 --rate 2gbit --around "$(printf '%q ' "${words[@]}")")
    fi
    "${run[@]}" "${words[@]}"
}

fabrics=()
for fabric in ${FABRICS:-host tcp lab}; do
    why=
    [ "$fabric" != lab ] || why=$(lab_missing)
    if [ -n "$why" ]; then say "lab: left out: $why"; else fabrics+=("$fabric"); fi
done
for fabric in "${fabrics[@]}"; do
    say "limits of $fabric"
    piece limits "$fabric"
done
for ((round = 0; round < rounds; round++)); do
    for fabric in "${fabrics[@]}"; do
        piece round "$fabric" "$round"
    done
done
"$venv/bin/python" tools/compare/compare.py report
