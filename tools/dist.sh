#!/usr/bin/env bash
# A tarball for machines without Rust: headers, library, CMake package, pkg-config file, licences. It can be unpacked
# anywhere.
#     tools/dist.sh FOLDER [GLIBC]  writes FOLDER/weft-VERSION-MACHINE-linux.tar.xz, and says so
# GLIBC: the oldest glibc that it is to run with, as 2.28, by cargo-zigbuild; without, that of this machine or a newer one.
# WEFT_CMAKE_FLAGS: further flags for cmake, as --toolchain FILE for another machine. TOOLS=1: weft-bench and its man page, too.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:?where to?}"
into=$(realpath "$1")
cargo=$(command -v "${CARGO:-cargo}")
PATH=$(dirname "$cargo"):$PATH # where rustc is, too
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
glibc=${2:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# A cargo that links with the symbols of an old glibc, and names no folder of this machine: such a library has the same
# bytes wherever it is built.
if [ -n "$glibc" ]; then
    # shellcheck disable=SC2086 # flags are words
    CARGO_ENCODED_RUSTFLAGS=$(printf '%s\x1f' ${RUSTFLAGS:-} "--remap-path-prefix=$PWD=weft")
    export CARGO_ENCODED_RUSTFLAGS=$CARGO_ENCODED_RUSTFLAGS--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo
    "$cargo" zigbuild --help >/dev/null 2>&1 || { echo "cargo-zigbuild is missing: pip install cargo-zigbuild" >&2; exit 1; }
    cat >"$scratch/cargo" <<SCRIPT
#!/usr/bin/env bash
unset \${!CARGO_TARGET_@} # the linker that CMake found
words=()
for word in "\$@"; do
    case \$word in
        build) words+=(zigbuild) ;;
        *-unknown-linux-gnu) words+=("\$word.$glibc") ;;
        *) words+=("\$word") ;;
    esac
done
exec "$cargo" "\${words[@]}"
SCRIPT
    chmod +x "$scratch/cargo"
    cargo=$scratch/cargo
    # Of this machine, if the toolchain is of no other.
    [[ ${WEFT_CMAKE_FLAGS:-} == *--toolchain* ]] ||
        WEFT_CMAKE_FLAGS="${WEFT_CMAKE_FLAGS:-} -DWEFT_RUST_TARGET=$(rustc -vV | sed -n 's/^host: //p')"
fi

# shellcheck disable=SC2086 # flags are words
cmake -S . -B "$scratch/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib -DWEFT_INSTALL=ON \
    -DCMAKE_INSTALL_PREFIX=/opt/weft -DWEFT_CARGO="$cargo" -DWEFT_CARGO_TARGET_DIR="$target" \
    ${WEFT_CMAKE_FLAGS:-} >"$scratch/log" || { cat "$scratch/log"; exit 1; }
cmake --build "$scratch/build"

asked() { sed -n "s/^$1:[A-Z]*=//p" "$scratch/build/CMakeCache.txt"; }
rust_target=$(asked WEFT_RUST_TARGET)
machine=${rust_target%%-*}
name=weft-$(asked CMAKE_PROJECT_VERSION)-${machine:-$(uname -m)}-linux
cmake --install "$scratch/build" --prefix "$scratch/$name" >"$scratch/log"
strip=$(asked CMAKE_STRIP)
made=("$scratch/$name/$(asked CMAKE_INSTALL_LIBDIR)"/libweft.so.*.*)
if [ -n "${TOOLS:-}" ]; then
    # Where cargo does not link by zig, it needs the linker of another machine.
    [ -z "$rust_target" ] || export "CARGO_TARGET_$(tr a-z- A-Z_ <<<"$rust_target")_LINKER=$(asked CMAKE_C_COMPILER)"
    "$cargo" build --package weft-bench --release --locked --target-dir "$target" ${rust_target:+--target "$rust_target"}
    install -D "$target/${rust_target:+$rust_target/}release/weft-bench" "$scratch/$name/bin/weft-bench"
    install -D -m 644 weft-bench/weft-bench.1 "$scratch/$name/share/man/man1/weft-bench.1"
    made+=("$scratch/$name/bin/weft-bench")
fi
"${strip:-strip}" --strip-unneeded "${made[@]}"

for one in "${made[@]}"; do
    [ -z "$glibc" ] || tools/glibc.sh "$one" "$glibc" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
done

licences=$scratch/$name/share/doc/weft
python3 tools/licences.py ${rust_target:+--target "$rust_target"} >"$licences/THIRD_PARTY"
of_rust=$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html
[ ! -e "$of_rust" ] || cp "$of_rust" "$licences/"

# The same files make the same tarball, on any machine and at any time.
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=go=rX,u+rwX \
    -C "$scratch" -cJf "$into/$name.tar.xz" "$name"
echo "$into/$name.tar.xz"
