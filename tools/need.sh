#!/usr/bin/env bash
# Looks for what a make target needs, installs what is missing with apt-get, and says so.
#     tools/need.sh lib|demo|docs|test-docs|compare|test|verbs|files-vm|efa|figures|chaos|sanitize|check|dist|deb|wheels|nixl
# With WEFT_NO_INSTALL=1, which a build of pip sets, it only says what is missing, and fails if that is something the target cannot do without.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin # where ldconfig and ip live; not in everybody's PATH
target=${1:?what for: lib, demo, docs, test-docs, compare, test, verbs, files-vm, efa, figures, chaos, sanitize, check, dist, deb, wheels or nixl}
cargo=${CARGO:-cargo}
packages=() reasons=() optional=()

say() { printf '%s\n' "$*"; }
have() { command -v "$1" >/dev/null 2>&1; }
want() { packages+=("$1"); reasons+=("$1 ($2)"); }
want_if_possible() { optional+=("$1"); reasons+=("$1 ($2; optional)"); }

have_libfabric() {
    if [ -n "${WEFT_LIBFABRIC:-}" ]; then
        [ -e "$WEFT_LIBFABRIC" ] || { say "WEFT_LIBFABRIC=$WEFT_LIBFABRIC: no such file" >&2; exit 1; }
        return 0
    fi
    # Not with grep -q, which would close the pipe early and fail ldconfig.
    [ -n "$(ldconfig -p 2>/dev/null | grep -F libfabric.so.1)" ] || compgen -G '/opt/amazon/efa/lib*/libfabric.so.1' >/dev/null
}

have_cmake() { # one that runs: pip's is a script, which may be of another environment
    local found
    found=$(cmake --version 2>/dev/null | sed -n 's/^cmake version \([0-9.]*\).*/\1/p')
    [ -n "$found" ] && [ "$(printf '3.20\n%s\n' "$found" | sort -V | head -n 1)" = 3.20 ]
}

need_rust() {
    local wanted found
    if ! "$cargo" --version >/dev/null 2>&1; then
        say "Rust is missing: see https://rustup.rs" >&2
        exit 1
    fi
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    found=$("$cargo" --version | cut -d' ' -f2 | cut -d- -f1)
    if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        say "Rust $wanted or newer is needed, and $(command -v "$cargo") is $found: rustup update, or https://rustup.rs" >&2
        exit 1
    fi
}

need_rust_tool() { # cargo's subcommand, rustup's component
    "$cargo" "$1" --version >/dev/null 2>&1 && return
    if [ -z "${WEFT_NO_INSTALL:-}" ] && have rustup; then
        say "Installing $2 with rustup."
        rustup component add "$2"
    else
        say "$2 is missing: rustup component add $2" >&2
        exit 1
    fi
}

look() {
    need_rust
    have cc || want gcc "a C compiler, and the linker that Rust uses"
    case $target in
        check)
            need_rust_tool fmt rustfmt; need_rust_tool clippy clippy
            have python3 || want python3 "what makes the declarations for Python" ;;
        lib) ;;
        docs | test-docs)
            python3 -c 'import ensurepip' 2>/dev/null || want python3-venv "the builder of the site"
            if [ "$target" = test-docs ]; then
                have chromium-headless-shell || have chromium || have google-chrome || want_if_possible chromium "a browser for the site"
                fc-list 2>/dev/null | grep -q . || want_if_possible fonts-dejavu-core "letters in the pictures of pages"
            fi ;;
        nixl)
            have g++ || want g++ "the plugin"
            python3 -c 'import ensurepip' 2>/dev/null || want python3-venv "NIXL's wheels" ;;
        compare)
            python3 -c 'import ensurepip' 2>/dev/null || want python3-venv "the peers' wheels"
            have iperf3 || want_if_possible iperf3 "a limit beside the figures"
            have ucx_perftest || want_if_possible ucx-utils "a limit beside the figures"
            have_libfabric || want_if_possible libfabric1 "NIXL's LIBFABRIC backend" ;;
        dist) have python3 || want python3 "collecting the licences" ;;
        deb | wheels)
            have g++ || want g++ "NIXL's plugin, and the compiled module of libweft"
            python3 -c 'import ensurepip' 2>/dev/null || want python3-venv "what links for an old glibc, and builds the wheels"
            python3 -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' 2>/dev/null ||
                want python3-dev "the compiled module of libweft"
            have debootstrap || want_if_possible debootstrap "roots to test in"
            [ "$target" = wheels ] || have lintian || want_if_possible lintian "the check of the packages"
            have qemu-aarch64 || want_if_possible qemu-user "the test of wheels for 64-bit Arm" ;;
        demo) have python3 || want python3 "the demonstration" ;;
        test | verbs | files-vm | efa | figures | chaos | sanitize) have_libfabric || want libfabric1 "the library beneath Weft" ;;
        *) say "tools/need.sh: what is $target?" >&2; exit 2 ;;
    esac
    if [[ $target =~ ^(test|dist|deb|wheels)$ ]]; then
        have_cmake || want cmake "3.20 or newer: it installs headers, library and the CMake package into the tarball"
        have make || want make "what cmake builds with"
        have xz || want xz-utils "packing the tarball"
    fi
    if [ "$target" = files-vm ]; then
        have fio || want fio "the kernel's NVMe over tcp to compare with"
        have dmsetup || want dmsetup "disks that fail"
        have mkfs.ext4 || want e2fsprogs "a file system on them"
        have python3 || want python3 "a disk that loses its cache"
    fi
    if [[ $target =~ ^(verbs|files-vm)$ ]]; then
        have qemu-system-x86_64 || want qemu-system-x86 "a machine with another kernel"
        have busybox || want busybox-static "what that machine starts with"
        have cpio || want cpio "what that machine starts with"
        have depmod || want kmod "that machine's drivers"
    fi
    if [ "$target" = efa ]; then
        compgen -G '/usr/lib*/*/libibverbs/libefa-rdmav*.so' >/dev/null || want ibverbs-providers "the driver for EFA in user space"
        have fi_pingpong || want libfabric-bin "a program of others to run over it"
        have debootstrap || want_if_possible debootstrap "a Debian with another libfabric"
        echo '#include <rdma/efa-abi.h>' | cc -E - >/dev/null 2>&1 || want linux-libc-dev "the kernel's interface"
    fi
    if [ "$target" = sanitize ]; then
        have gcc || want gcc "the C tests"
        have valgrind || want valgrind "reads of what was never written"
    fi
    if [ "$target" = test ]; then
        have ninja || want ninja-build "the tests of the CMake package"
        have pkg-config || want pkg-config "the test of weft.pc"
        have gcc && have g++ || want g++ "the C and C++ tests"
        have python3 || want python3 "the Python tests"
        have abidiff || want_if_possible abigail-tools "the comparison with the first ABI"
        python3 -c 'import ensurepip' 2>/dev/null || want_if_possible python3-venv "the tests of the wheel"
    fi
    if [[ $target =~ ^(demo|compare|test|figures|chaos)$ ]] && [ "$(id -u)" = 0 ]; then
        have ip || want_if_possible iproute2 "two hosts on one machine: network namespaces"
    fi
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" </dev/null
}

install() {
    local log=target/install.log
    mkdir -p target
    say "Missing: $missing. Installing with apt-get (details: $log)."
    # A fresh machine has no package lists, and an old one has stale ones.
    if ! { apt_install "$@" || { as_root apt-get update && apt_install "$@"; }; } >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        return 1
    fi
    say "Installed: $*."
}

look
[ ${#packages[@]} -eq 0 ] && [ ${#optional[@]} -eq 0 ] && exit 0
by_hand=$(echo apt-get install "${packages[@]}" "${optional[@]}")
missing=$(printf '%s, ' "${reasons[@]}")
missing=${missing%, }
if [ -n "${WEFT_NO_INSTALL:-}" ]; then
    say "Missing: $missing. To install it: $by_hand"
elif ! have apt-get; then
    say "Missing: $missing. This is no Debian or Ubuntu: install what corresponds to it."
elif [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
    say "Missing: $missing. Not root, and no sudo without a password; by hand: sudo $by_hand"
elif install "${packages[@]}" "${optional[@]}"; then
    exit 0
fi
[ ${#packages[@]} -eq 0 ] # what is optional may stay missing
