#!/usr/bin/env bash
# Measures what a peer's disk costs, over tcp (random reads: over host), beside fio: prints the figures that ffi-tests/device/disk_figures.c names, and
# leaves them in target/figures.
#
#     tools/disk-figures.sh LIBDIR [PART]     with libweft_simulated.so; PART: hung, staging, files, random_reads or faults
#
# file_fault_findings: of the faults of ffi-tests/device/file_faults.c, by io_uring and by threads, those that a test finds
# something wrong with (root: they need a disk that fails; hangs of 10 s).
set -eu
cd "$(dirname "$0")/.."
libdir=$(cd "$1" && pwd)
mkdir -p target/figures target/disk-figures
ln -sf "$libdir/libweft_simulated.so" target/disk-figures/libweft.so.0
make -s -f ffi-tests/Makefile OUT="$PWD/target/disk-figures" disk_figures file_faults
cd target/disk-figures

# Prints "ok", "found" or "skipped" for a fault.
fault() { # NAME
    local status=0
    timeout 300 ./file_faults "$1" >"$1.log" 2>&1 || status=$?
    case $status in
    0) echo "ok $1" ;;
    77) echo "skipped $1: $(grep -o 'SKIPPED.*' "$1.log")" ;;
    *) echo "found $1: $(tail -n 3 "$1.log" | tr '\n' ' ')" ;;
    esac
}

faults() {
    export -f fault
    export LD_LIBRARY_PATH=$PWD WEFT_TEST_FABRIC=tcp WEFT_TEST_HANG_MS=10000 WEFT_TEST_RESETS=10
    ./file_faults --list | cut -d' ' -f1 | xargs -P 4 -I{} bash -c 'fault {}' >faults.out
    grep -v '^ok ' faults.out >&2 || true
    if grep -q '^skipped' faults.out; then return; fi
    grep -q '^ok' faults.out
    grep -c '^found' faults.out >../figures/file_fault_findings || true
    echo "file_fault_findings $(cat ../figures/file_fault_findings)"
}

for part in ${2:-hung staging files random_reads faults}; do
    if [ "$part" = faults ]; then
        faults
        continue
    fi
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
