#!/usr/bin/env bash
# Files, and memory of fake devices, over NICs that do not reach them: soft-RoCE in a virtual machine (tools/test-verbs.sh) and
# emulated EFA (tools/test-efa.sh). Figures: bounce_tests_passed and bounce_tests_failed of both.
#     tools/test-staged.sh LIBDIR [FILTER]     LIBDIR: with libweft_simulated.so; FILTER: a part of the tests' names
# SHORT=1: in the virtual machine, a choice; what has passed there is not run again until the library or the program changes.
set -uo pipefail
cd "$(dirname "$0")/.."
libdir=$PWD/target/test-staged
mkdir -p "$libdir" target/figures
cp "$(realpath "$1")/libweft_simulated.so" "$libdir/libweft.so"
export STAGED=1
status=0
tools/test-efa.sh "$libdir" "$libdir/libweft.so" "${2:-}" || status=1
tools/test-verbs.sh "$libdir" "$libdir/libweft.so" "$libdir/libweft.so" "${2:-}" || status=1
for each in passed failed; do
    cat target/figures/{verbs,efa}_bounce_tests_$each | awk '{ all += $1 } END { print all + 0 }' | tee target/figures/bounce_tests_$each
done
exit $status
