#!/usr/bin/env bash
# Runs a command with a libfabric of 2.x, which the LIBFABRIC backend in NIXL's wheels needs and older systems lack.
#     tools/nixl-libfabric.sh make                makes target/nixl/debian13 (15 MB), or says why it cannot
#     tools/nixl-libfabric.sh COMMAND WORDS...    in NIXL's environment
# Debian 13's packages are unpacked and laid over this system's libraries, for the command alone (a mount namespace, so
# only root can); its C library comes with them, since its libfabric needs it. CUDA's runtime is a wheel, and the driver,
# which nobody asks here, something with its functions' names. In a network namespace of the command's own there is one NIC,
# since libfabric's tcp does not open loopback; all that is sent still takes the way of loopback.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
to=$root/target/nixl/debian13
libs=/usr/lib/x86_64-linux-gnu
packages=(libc6 libfabric1 libpsm2-2 libibverbs1 ibverbs-providers librdmacm1t64 libnl-3-200 libnl-route-3-200 libnuma1
    libhwloc15)
wheel=$root/target/nixl/1.4.1

fail() { echo "$*"; exit 1; }

download() {
    local mirror=${WEFT_DEBIAN_MIRROR:-} keys=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -n "$mirror" ] || mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' | head -n 1)
    [ -n "$mirror" ] || fail "apt-get knows no mirror of Debian's (apt-get update, or WEFT_DEBIAN_MIRROR)"
    rm -rf "$to"
    mkdir -p "$to"/{lists/partial,archives/partial,debs,driver}
    : >"$to/status"
    echo "deb [signed-by=$keys] $mirror trixie main" >"$to/sources.list"
    cat >"$to/apt.conf" <<END
Dir::Etc::sourcelist "$to/sources.list";
Dir::Etc::sourceparts "-";
Dir::State "$to";
Dir::State::status "$to/status";
Dir::Cache "$to";
APT::Sandbox::User "root";
END
    export APT_CONFIG=$to/apt.conf
    apt-get update -qq >"$to/log" 2>&1 && (cd "$to/debs" && apt-get download -qq "${packages[@]}") >>"$to/log" 2>&1 ||
        fail "Debian 13's packages cannot be had: $(tail -n 1 "$to/log")"
    unset APT_CONFIG
}

make_it() {
    local deb plugin=$wheel/lib/python3*/site-packages/.nixl_cu12.mesonpy.libs/plugins/libplugin_LIBFABRIC.so
    [ -e "$to/done" ] && return
    [ "$(uname -m)" = x86_64 ] && command -v apt-get dpkg-deb >/dev/null || fail "it takes Debian's packages for x86-64"
    [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null || fail "only root can lay a libfabric over this system's"
    download
    for deb in "$to"/debs/*.deb; do dpkg-deb -x "$deb" "$to/root"; done
    "$wheel/bin/pip" install -q --no-deps --disable-pip-version-check nvidia-cuda-runtime-cu12 >"$to/log" 2>&1 ||
        fail "pip cannot install nvidia-cuda-runtime-cu12: $(tail -n 1 "$to/log")"
    # shellcheck disable=SC2086 # a pattern
    nm -D --undefined-only $plugin | sed -n 's/.* \(cu[A-Z][A-Za-z0-9_]*\)$/int \1(void) { return 100; }/p' >"$to/driver/cuda.c"
    cc -shared -fPIC -Wl,-soname,libcuda.so.1 "$to/driver/cuda.c" -o "$to/driver/libcuda.so.1"
    rm -rf "$to/lists" "$to/debs"
    touch "$to/done"
}

if [ "${1:?make, or a command}" = make ]; then
    make_it
else
    # libnuma first of all: the wheel has its own, and each calls the other before that one is ready.
    exec unshare -mn bash -c '
        ip link set lo up && ip link add nic0 type veth peer name nic1 && ip addr add 10.8.0.1/24 dev nic0 &&
            ip link set nic0 up && ip link set nic1 up && mount -t overlay overlay -o "lowerdir=$1:$2" "$2" &&
            LD_LIBRARY_PATH=$3 LD_PRELOAD=libnuma.so.1 exec "${@:4}"' - "$to/root$libs" "$libs" "$to/driver:$(echo "$wheel"/lib/python3*/site-packages/nvidia/cuda_runtime/lib)" "$@"
fi
