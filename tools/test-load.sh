#!/usr/bin/env bash
# The tests on two processors beside eight busy loops: the C tests whole, once, and then twenty times each that judges a
# time (the word "timed" in their tables). The last line is the figure test_under_load_failed.
#     tools/test-load.sh LIBRARY_FOLDER [REPEAT [FILTER]]
set -uo pipefail
cd "$(dirname "$0")/.."
library=${1:?where is libweft.so?} repeat=${2:-20} filter=${3:-}
failed=0 loops=() processors=$(taskset -cp $$ | sed 's/.*: //; s/-/ /; s/,/ /g' | awk '{ print $1 "," ($2 == "" ? $1 : $1 + 1) }')
trap 'kill "${loops[@]}" 2>/dev/null' EXIT
for ((i = 0; i < 8; i++)); do
    taskset -c "$processors" bash -c 'while :; do :; done' &
    loops+=($!)
done

run() { # what is run, as variables of ffi-tests/run
    local status=0 log
    log=$(mktemp)
    env WEFT_TEST_OUT="$PWD/target/test-load" "$@" taskset -c "$processors" ffi-tests/run "$library" "$filter" 2>&1 | tee "$log" |
        grep -vE ': (ok$|skipped)' || status=1
    failed=$((failed + $(sed -nE 's/^[0-9]+ passed, ([0-9]+) failed, .*/\1/p' "$log" | tail -n 1)))
    rm -f "$log"
}

run
run WEFT_TEST_WORD=timed WEFT_TEST_REPEAT="$repeat"
mkdir -p target/figures && echo "$failed" >target/figures/test_under_load_failed
echo "test_under_load_failed $failed"
[ "$failed" = 0 ]
