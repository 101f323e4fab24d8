#!/usr/bin/env bash
# The wheels of target/wheels, installed from these files and used: in roots of Debian 12 and 13, with their Pythons and
# the oldest and the newest of this machine; for 64-bit Arm under qemu-user; and here, to build programs in C and C++.
#     tools/test-wheels.sh
# Needs root, debootstrap and, for Arm, qemu-user. Leaves in target/figures: wheels_tested, roots times Pythons that passed.
set -uo pipefail
cd "$(dirname "$0")/.."
wheels=$PWD/target/wheels
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
logs=$scratch
# shellcheck source=tools/cases.sh
. tools/cases.sh
# shellcheck source=tools/roots.sh
. tools/roots.sh
export PYTHONDONTWRITEBYTECODE=1
tested=0

# What is done with each, wherever it is: $1 is Python.
cat >"$scratch/use.sh" <<'EOT'
set -eu
cd /tmp
for way in "host 0" "tcp 0" "host 1"; do
    PYTHONPATH=$TESTS${PYTHONPATH:+:$PYTHONPATH} WEFT_TEST_FABRIC=${way% *} WEFT_PYTHON_PURE=${way#* } WEFT_LOG=error \
        "$@" -m unittest test_buffers test_transfers
done
"$@" -c 'import libweft._hot as hot; assert hot.native, "no compiled module"'
"$@" -c 'import sys; print("Python %d.%d" % sys.version_info[:2])'
"$@" -c 'import libweft; libweft.lib.weft_version(); assert "/libweft/lib/libweft.so.0" in libweft.lib.path, libweft.lib'
"$@" -m libweft --cflags --libs --cmake-dir
"$@" -m libweft_nixl
"$@" -c 'import ctypes, libweft_nixl.__main__ as n; assert ctypes.CDLL(str(n.PLUGIN)).nixl_plugin_init'
EOT

in_debian() { # root, Python, its folder or ""
    in_root "$1" "$wheels $PWD/python/tests $scratch $3" env TESTS="$PWD/python/tests" PATH=/usr/bin:/bin bash -ec '
        cd /tmp
        rm -rf env
        "$1" -m venv env
        env/bin/pip install -q --disable-pip-version-check --no-index "$2"/libweft-*_"$(uname -m)".whl "$2"/libweft_{nixl,tools}-*_"$(uname -m)".whl
        bash "$3" /tmp/env/bin/python
        env/bin/weft-bench loopback --provider tcp --rail-names lo --seconds 0.5 --verify
        # libfabric is not in the wheel, and is found.
        env/bin/python -c "import libweft; libweft.Endpoint(\"tcp;ofi_rxm\", rails=\"lo\").close()"' - "$2" "$wheels" "$scratch/use.sh"
}

on_arm() { # root, Python
    local wheel platforms=()
    for wheel in "$wheels"/libweft*_aarch64.whl; do
        wheel=${wheel##*-}
        platforms+=(--platform "${wheel%.whl}")
    done
    python3 -m pip install -q --disable-pip-version-check --no-index --no-deps --target "$scratch/arm" "${platforms[@]}" \
        --only-binary :all: "$wheels"/libweft*_aarch64.whl || return
    TESTS=$PWD/python/tests PYTHONPATH=$scratch/arm bash "$scratch/use.sh" qemu-aarch64 -L "$roots/$1" "$roots/$1/usr/bin/$2"
}

builds() { # CMake and a compiler, by what the wheel prints
    python3 -m venv "$scratch/env" && "$scratch/env/bin/pip" install -q --no-index "$wheels"/libweft-*_"$(uname -m)".whl || return
    local python=$scratch/env/bin/python source=ffi-tests/package/consumer
    cmake -S "$source" -B "$scratch/build" -Dweft_DIR="$("$python" -m libweft --cmake-dir)" && cmake --build "$scratch/build" || return
    eval "cc $source/main.c $("$python" -m libweft --cflags --libs) -o $scratch/build/by_hand" || return
    local version="library $("$python" -c 'import libweft; print(libweft.__version__)')"
    for program in in_c in_cpp by_hand; do
        "$scratch/build/$program" | grep -F "$version" || return
        readelf -d "$scratch/build/$program" | grep -q 'NEEDED.*\[libweft\.so\.0\]' || return
    done
}

# What is counted, and stands in docs/support.md.
count() { # name, command...
    local before=$passed
    check "$1" listed "${@:2}"
    tested=$((tested + passed - before))
}

listed() {
    "$@" | tee "$scratch/said" || return
    tested_with Python "$(sed -n 's/^Python //p' "$scratch/said")"
}

check "wheels: CMake, and a compiler" builds
if may_chroot; then
    # Those of this machine that have a folder of their own, the oldest and the newest.
    mapfile -t others < <(for python in python3.{9..19} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
        "$python" -c 'import sys; sys.version_info >= (3, 9) and sys.base_prefix != "/usr" and print(sys.base_prefix)' 2>/dev/null
    done | sort -Vu | sed -n '1p; 1!{$p}')
    for suite in bookworm trixie; do
        if ! make_root "wheels-$suite" $suite python3,python3-venv,libstdc++6,libfabric1; then
            skip "wheels: $suite" "the root could not be made"
            continue
        fi
        count "wheels: $suite, its Python" in_debian "wheels-$suite" python3 ""
        for folder in "${others[@]}"; do
            count "wheels: $suite, ${folder##*/}" in_debian "wheels-$suite" "$folder/bin/python3" "$folder"
        done
    done
else
    skip "wheels: roots of Debian" "only root can be in another one"
fi
if [ -e "$(echo "$wheels"/libweft-*_aarch64.whl)" ] && command -v qemu-aarch64 >/dev/null &&
    make_root wheels-arm trixie python3,libstdc++6 arm64; then
    count "wheels: trixie for 64-bit Arm, its Python" on_arm wheels-arm python3
else
    skip "wheels: 64-bit Arm" "there is no wheel for it, no qemu-user, or no root"
fi
mkdir -p target/figures
echo "wheels_tested: $(tee target/figures/wheels_tested <<<"$tested")"
counted
