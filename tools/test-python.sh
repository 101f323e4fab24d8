#!/usr/bin/env bash
# The Python package: its tests with the library that was built, its types, its wheel and its example.
#     tools/test-python.sh LIBRARY_FOLDER
# What pip brings goes into target/python; without a registry what needs it is left out, with a line.
set -uo pipefail
cd "$(dirname "$0")/.."
library=$(realpath "${1:?where is libweft.so?}")/libweft.so
venv=$PWD/target/python
log=$(mktemp)
trap 'rm -f "$log" "$log.py"' EXIT
# shellcheck source=tools/cases.sh
. tools/cases.sh
export PYTHONDONTWRITEBYTECODE=1 MYPYPATH=$PWD/python/src

# from_source COMMAND...: with the package as it lies here.
from_source() { WEFT_LIBRARY=$library PYTHONPATH=$PWD/python/src "$@"; }
suite() {
    timeout 300 "$1" -W error::ResourceWarning -m unittest discover -s python/tests &&
        tested_with Python "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
}

# Where the tests run; by ctypes alone they run as well.
compiled() {
    python3 python/build_native.py && from_source python3 -c 'import libweft._hot as hot; assert hot.native'
}

example() {
    local python=$1 port pids=() status=0
    port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    export STORE=127.0.0.1:$port
    "$python" python/examples/kv_cache.py store & pids+=($!)
    "$python" python/examples/kv_cache.py prefill & pids+=($!)
    timeout 300 "$python" python/examples/kv_cache.py decode || status=1
    wait "${pids[1]}" || status=1
    kill "${pids[0]}"
    return $status
}

# Two trainers and an inference process.
weights_example() {
    local python=$1 folder=examples-python/weights_to_inference said rank ports=() pids=() status=0
    said=$(mktemp -d)
    for rank in 0 1; do
        timeout 100 "$python" $folder/trainer.py $rank 2 >"$said/$rank" & pids+=($!)
    done
    for rank in 0 1; do
        for _ in $(seq 300); do
            ! grep -q ' at ' "$said/$rank" || break
            sleep 0.1
        done
        ports+=("$(sed -n 's/.* at //p' "$said/$rank")")
    done
    timeout 100 "$python" $folder/inference.py "${ports[@]}" | tee "$said/inference" || status=1
    for rank in 0 1; do wait "${pids[rank]}" || status=1; done
    grep -q '^version 3: .* the answer is ' "$said/inference" || status=1
    rm -r "$said"
    return $status
}

checkpoint_example() {
    local folder status=0
    folder=$(mktemp -d)
    timeout 300 "$1" examples-python/checkpoints/train.py "$folder" | tee "$folder/said" || status=1
    grep -q '^rank 2 of 3 begins at step 20$' "$folder/said" && grep -q '^checkpoints: .*40\]; bytes that differ: \[\]$' "$folder/said" || status=1
    rm -r "$folder"
    return $status
}

readme() {
    awk '/^```python$/ { on = 1; next } /^```$/ { on = 0 } on' python/README.md >"$log.py"
    timeout 300 "$1" "$log.py" | grep -F 'Hello from the other endpoint.'
}

interface() { # pyright counts as failed what other packages' classes are to it
    { from_source timeout 300 "$venv/bin/pyright" --pythonpath "$venv/bin/python" --verifytypes libweft --ignoreexternal --outputjson || true; } |
        "$venv/bin/python" python/tests/interface_types.py
}

wheel() {
    rm -rf target/wheel
    WEFT_DIST=$(tools/dist.sh target/dist | tail -n 1) timeout 300 "$venv/bin/pip" wheel -q --no-build-isolation --no-deps -w target/wheel ./python &&
        timeout 300 "$venv/bin/pip" install -q --force-reinstall --no-deps target/wheel/libweft-*.whl
}

# The tag in its name is the one that auditwheel finds to be true.
tag_is_true() {
    local name
    name=$(basename target/wheel/libweft-*.whl .whl)
    "$venv/bin/auditwheel" show target/wheel/libweft-*.whl | tee /dev/stderr | tr '\n' ' ' |
        grep -qF "platform tag: \"${name##*-}\""
}

installed_alone() {
    (cd / && env -u WEFT_LIBRARY -u PYTHONPATH "$venv/bin/python" -c \
        'import libweft; libweft.lib.weft_version(); assert "site-packages" in libweft.lib.path, libweft.lib; print(libweft.library_version())')
}

check "Python: the calls are compiled" compiled
for fabric in host tcp; do
    export WEFT_TEST_FABRIC=$fabric
    check "Python: the package's tests over $fabric" from_source suite python3
done
unset WEFT_TEST_FABRIC
check "Python: the package's tests by ctypes alone" from_source env WEFT_PYTHON_PURE=1 \
    timeout 300 python3 -W error::ResourceWarning -m unittest discover -s python/tests -p 'test_[acgipt]*.py'
for minor in 9 10 12 13 14; do
    python=python3.$minor
    "$python" -c 'import ctypes' 2>/dev/null || continue
    check "Python: the package's tests with $python" from_source suite "$python"
done
check "Python: the example" from_source example python3
check "Python: pages are used again" from_source timeout 300 python3 python/examples/pages_back.py
check "Python: README" from_source readme python3

if { [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"; } >"$log" 2>&1 &&
    { "$venv/bin/python" -c 'import mypy, numpy, auditwheel, hatchling, elftools' 2>/dev/null ||
        timeout 300 "$venv/bin/pip" install -q mypy numpy auditwheel hatchling pyelftools; } >"$log" 2>&1; then
    check "Python: types" timeout 300 "$venv/bin/mypy" --strict python/src/libweft python/tests python/hatch_build.py python/examples examples-python
    export PYRIGHT_PYTHON_CACHE_DIR=$venv/pyright PYRIGHT_PYTHON_IGNORE_WARNINGS=1
    if { [ -x "$venv/bin/pyright" ] || timeout 100 "$venv/bin/pip" install -q pyright; } >"$log" 2>&1 &&
        timeout 100 "$venv/bin/pyright" --version >"$log" 2>&1; then
        check "Python: types, as pyright has them of a user's program" from_source timeout 300 "$venv/bin/pyright" -p python/tests/typing --pythonpath "$venv/bin/python"
        check "Python: no type of the interface is guessed" interface
    else
        skip "Python: types, as pyright has them" "pip or npm cannot install pyright ($(tail -n 1 "$log"))"
    fi
    check "Python: a wheel is built and installed" wheel
    check "Python: its tag is true" tag_is_true
    check "Python: the wheel brings its library" installed_alone
    check "Python: the example of weights to inference" from_source weights_example "$venv/bin/python"
    check "Python: the example of checkpoints" from_source checkpoint_example "$venv/bin/python"
    check "Python: the tests with the wheel, and numpy" suite "$venv/bin/python"
else
    skip "Python: types and the wheel" "pip cannot install mypy, numpy, auditwheel and hatchling ($(tail -n 1 "$log"))"
fi
counted
