#!/usr/bin/env bash
# The WEFT backend of NIXL in NIXL's own wheels, over host and tcp: calls of agents, faults, what engines call.
#     tools/test-nixl.sh PLUGIN [ONLY]     PLUGIN: libplugin_WEFT.so; ONLY: a part of the names of the cases to run
# SHORT=1: one version of NIXL. The wheels go into target/nixl; without a registry the tests are skipped, with a line.
set -uo pipefail
cd "$(dirname "$0")/.."
plugin=$(realpath "${1:?where is libplugin_WEFT.so?}")
only=${2:-}
tests=$PWD/integrations/nixl/tests
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# shellcheck source=tools/cases.sh
. tools/cases.sh
# shellcheck source=tools/nixl-wheels.sh
. tools/nixl-wheels.sh
main=1.4.1 others="1.0.0 1.2.0 1.5.1" old=0.9.0
export NIXL_CALLS=$logs/calls
export PYTHONDONTWRITEBYTECODE=1 NIXL_LOG_LEVEL=${NIXL_LOG_LEVEL:-WARN} NIXL_PLUGIN_DIR=${plugin%/*}

suite() { # version, fabric, names of unittest
    (cd "$tests" && WEFT_NIXL_FABRIC=$2 timeout 600 "$OLDPWD/target/nixl/$1/bin/python" -m unittest "${@:3}") &&
        tested_with NIXL "$1"
}

rail_down() {
    mkdir "$logs/lab" && timeout 300 tools/lab.sh --rails 2 --rate 500mbit \
        "$PWD/target/nixl/$main/bin/python $tests/lab.py $logs/lab" && [ -e "$logs/lab/right-is-done" ]
}

refused() {
    ! (cd "$tests" && timeout 60 "$OLDPWD/target/nixl/$old/bin/python" -m unittest test_transfers) >"$logs/old.out" 2>&1 &&
        grep -q 'WEFT plugin: .* is not NIXL 1.0 or newer' "$logs/old.out"
}

# with VERSION NAME COMMAND...: a case, where that wheel can be had.
with() {
    skipped_by_name "$2" && return
    if environment "$1" >"$logs/pip" 2>&1; then
        check "${@:2}"
    else
        skip "$2" "pip cannot install nixl-cu12 $1 ($(tail -n 1 "$logs/pip"))"
    fi
}

for fabric in host tcp; do
    with $main "NIXL $main: every call, transfers, files and engines' calls over $fabric" \
        suite $main $fabric test_calls test_transfers test_files test_engines
    with $main "NIXL $main: faults over $fabric" suite $main $fabric test_faults
done
if tools/lab.sh --rails 1 true >/dev/null 2>&1; then
    with $main "NIXL $main: a rail goes down under a read and a write" rail_down
else
    skip "NIXL $main: a rail goes down under a read and a write" "no network namespaces here (root; iproute2)"
fi
if [ -z "${SHORT:-}" ]; then
    for version in $others; do
        with "$version" "NIXL $version: transfers, files and engines' calls over tcp" suite "$version" tcp test_transfers test_files test_engines
    done
    with $old "NIXL $old is refused" refused
fi
[ ! -e "$NIXL_CALLS" ] || sort "$NIXL_CALLS" | head -n 1 # of the fabric with the fewest
counted
