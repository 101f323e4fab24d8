#!/usr/bin/env bash
# The wheels, in target/wheels: libweft, with the library for glibc 2.28, libweft-tools, with weft-bench, and libweft-nixl, with the
# plugin. The tarball that they are made of is in target/dist (docs/building.md: another machine).
#     tools/wheels.sh [MACHINE...]     x86_64, aarch64; this machine without an argument
# For another machine than this one it needs Debian's g++-MACHINE-linux-gnu and that machine's part of Rust: rustup target
# add MACHINE-unknown-linux-gnu, or Debian 13's rustc and libstd-rust-dev:arm64. What pip brings goes into target/wheels/env.
# Leaves in target/figures: wheel_mb, of x86_64.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/target/wheels env=$PWD/target/wheels/env
this=$(uname -m)
[ $# -gt 0 ] || set -- "$this"
mkdir -p target/dist
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

tools/zig.sh
PATH=$env/bin:$PATH

wheel() { # project's folder
    "$env/bin/pip" wheel -q --no-build-isolation --no-deps --no-index -w "$out" "./$1"
}

# What its name says is what auditwheel finds.
audited() { # wheel
    local said
    said=$("$env/bin/auditwheel" show "$1" | tr '\n' ' ')
    [[ $said == *"platform tag: \"$2\""* ]] || { echo "auditwheel on $1: $said" >&2; exit 1; }
}

for machine; do
    rm -f "$out"/libweft*_"$machine".whl
    flags=() cc=cc
    [ "$machine" = "$this" ] || flags=(--toolchain "$PWD/cmake/$machine-linux-gnu.cmake") cc=$machine-linux-gnu-gcc
    TOOLS=1 WEFT_CMAKE_FLAGS="${flags[*]}" tools/dist.sh "$scratch/$machine" 2.28
    cp "$scratch/$machine"/weft-*.tar.xz target/dist/
    export WEFT_DIST WEFT_NIXL_PLUGIN
    WEFT_DIST=$(echo "$scratch/$machine"/weft-*.tar.xz)
    CC=$cc wheel python
    [[ $(python3 -m zipfile -l "$out"/libweft-*_"$machine".whl) == *_native.abi3.so* ]] ||
        { echo "the wheel has no compiled module: $cc and Python.h are needed" >&2; exit 1; }
    wheel weft-bench/python
    for one in "$out"/libweft{,_tools}-*_"$machine".whl; do
        audited "$one" "manylinux_2_28_$machine"
    done

    tar -C "$scratch/$machine" -xf "$WEFT_DIST"
    cmake -S integrations/nixl -B "$scratch/$machine/nixl" -DCMAKE_BUILD_TYPE=Release "${flags[@]}" \
        -Dweft_DIR="$(echo "$scratch/$machine"/weft-*/lib/cmake/weft)" >/dev/null
    cmake --build "$scratch/$machine/nixl"
    cmake --install "$scratch/$machine/nixl" --strip --prefix "$scratch/$machine/installed" >/dev/null
    WEFT_NIXL_PLUGIN=$scratch/$machine/installed/lib/nixl/plugins/libplugin_WEFT.so
    tools/glibc.sh "$WEFT_NIXL_PLUGIN" 2.34 >"$scratch/log" || { cat "$scratch/log" >&2; exit 1; }
    wheel integrations/nixl/python
done
ls -l "$out"/*.whl
if [ -e "$out"/libweft-*_x86_64.whl ]; then
    mkdir -p target/figures
    echo "wheel_mb: $(stat -c %s "$out"/libweft-*_x86_64.whl | awk '{ print $1 / 1e6 }' | tee target/figures/wheel_mb)"
fi
