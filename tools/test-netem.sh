#!/usr/bin/env bash
# Weft's tcp beside a plain socket where packets are lost and take their time: 1 % and 10 ms there and back, by Linux's
# netem, in a virtual machine (tools/vm.sh) where this kernel has none. Its bytes are verified, and what failed is
# said. The figure tcp_netem_verified is printed, and left in target/figures.
#     tools/test-netem.sh WEFT_BENCH
set -euo pipefail
cd "$(dirname "$0")/.."
bench=$(realpath "${1:?the weft-bench to run}")
if [ "${2:-}" = inside ]; then
    modprobe sch_netem
    "$bench" figures --only tcp_netem_verified --json /run/share/netem.json
    exit
fi
found=$PWD/target/vm/share/netem.json
rm -f "$found"
tools/vm.sh tools/test-netem.sh "$bench" inside
share=$(sed -n 's/.*"tcp_netem_verified": \([0-9.]*\),\{0,1\}$/\1/p' "$found")
[ -n "$share" ] || { echo "not measured" >&2; exit 1; }
mkdir -p target/figures
echo "$share" | tee target/figures/tcp_netem_verified
awk -v share="$share" 'BEGIN { exit !(share >= 0.8) }' || { echo "tcp_netem_verified is less than 0.8" >&2; exit 1; }
