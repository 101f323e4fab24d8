#!/usr/bin/env bash
# Measures what a peer's disk costs, over tcp (random reads: over host), beside fio: prints the figures that ffi-tests/device/disk_figures.c names, and
# leaves them in target/figures.
#
#     tools/disk-figures.sh LIBDIR [PART]     with libweft_simulated.so; PART: hung, staging, files or random_reads
set -eu
cd "$(dirname "$0")/.."
libdir=$(cd "$1" && pwd)
mkdir -p target/figures target/disk-figures
ln -sf "$libdir/libweft_simulated.so" target/disk-figures/libweft.so.0
make -s -f ffi-tests/Makefile OUT="$PWD/target/disk-figures" disk_figures
cd target/disk-figures
for part in ${2:-hung staging files random_reads}; do
    fabric=tcp
    [ "$part" != random_reads ] || fabric=host
    LD_LIBRARY_PATH=$PWD WEFT_TEST_FABRIC=$fabric ./disk_figures "$part" >"$part.out" 2>"$part.log" || {
        tail -n 5 "$part.log" "$part.out" >&2
        grep -q fio "$part.out" "$part.log" && continue
        exit 1
    }
    grep -E '^[a-z0-9_]+ -?[0-9.]+$' "$part.out" | while read -r name value; do
        echo "$name $value"
        echo "$value" >"../figures/$name"
    done
done
