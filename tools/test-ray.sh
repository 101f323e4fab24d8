#!/usr/bin/env bash
# The transport for Ray: actors in processes of their own, over host and tcp.
#     tools/test-ray.sh LIBRARY_FOLDER
# Ray (360 MB) goes into target/ray; without a registry the tests are skipped, with a line.
set -uo pipefail
cd "$(dirname "$0")/.."
library=$(realpath "${1:?where is libweft.so?}")/libweft.so
venv=$PWD/target/ray
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck source=tools/cases.sh
. tools/cases.sh

suite() { # fabric
    WEFT_RAY_FABRIC=$1 WEFT_LIBRARY=$library PYTHONPATH=$PWD/python/src:$PWD/python/tests RAY_AUTH_MODE=disabled \
        PYTHONDONTWRITEBYTECODE=1 timeout 300 "$venv/bin/python" -m unittest test_ray
}

if { [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"; } >"$log" 2>&1 &&
    { "$venv/bin/python" -c 'import ray, numpy' 2>/dev/null || timeout 500 "$venv/bin/pip" install -q 'ray==2.60.0' numpy; } >"$log" 2>&1; then
    for fabric in host tcp; do
        check "Ray: actors over $fabric" suite "$fabric"
    done
else
    skip "Ray" "pip cannot install ray ($(tail -n 1 "$log"))"
fi
counted
