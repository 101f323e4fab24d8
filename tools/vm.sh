#!/usr/bin/env bash
# Runs a command on another kernel: in a virtual machine whose root is this machine's, read-only, so that what was built
# here runs there, at the same paths. What the command writes is lost with the machine, but for what it puts into
# target/vm/share. Its output comes out here, and its exit status is this script's.
#
#     tools/vm.sh COMMAND WORDS...
#     tools/vm.sh make                only makes what it boots
#
# The kernel, and what this machine lacks of the RDMA tools, are Debian packages, unpacked into target/vm (600 MB) and
# kept there. It needs qemu-system-x86, busybox-static, cpio and kmod; not root. Without KVM it emulates: slower, and no
# measure of speed.
#
#   VM_RELEASE  libfabric, and the libraries that it needs, of this release of Debian, such as trixie (this machine's)
#   VM_MEMORY   MiB (4096)
#   VM_CPUS     processors (2)
#   VM_LIMIT    seconds until the machine is ended (3600)
#   VM_APPEND   further words of the kernel's command line
#   VM_QEMU     further options of QEMU, such as -qmp unix:/tmp/vm.sock,server=on,wait=off
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
vm=$PWD/target/vm
layer=$vm/layer${VM_RELEASE:+-$VM_RELEASE}
parts=$PWD/tools/vm
packages=(rdma-core ibverbs-utils rdmacm-utils libfabric-bin libfabric1 ibverbs-providers librdmacm1 iproute2)
# What the first process needs to find its root, and modules for the command are loaded from there.
modules=(virtio_pci 9pnet_virtio 9p overlay virtio_rng)

say() { printf '%s\n' "$*" >&2; }
fail() { say "tools/vm.sh: $*"; exit 1; }
# Ends with status 77: such a machine cannot be made here.
lacks() { say "tools/vm.sh: $*"; exit 77; }

needs() {
    local missing=() tool
    [ "$(uname -m)" = x86_64 ] || lacks "it emulates x86-64, and this is $(uname -m)"
    command -v dpkg-deb >/dev/null && command -v apt-get >/dev/null || lacks "it takes Debian's packages: apt-get and dpkg-deb are missing"
    for tool in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod; do
        command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
    done
    [ ${#missing[@]} = 0 ] || lacks "it needs ${missing[*]}: apt-get install --no-install-recommends ${missing[*]}"
    ldd "$(command -v busybox)" >/dev/null 2>&1 && lacks "busybox is linked with libraries: apt-get install busybox-static"
    return 0
}

# The packages that this machine lacks, with all that they depend on, and the kernel.
download() {
    local kernel wanted
    kernel=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-/ { print $2; exit }')
    [ -n "$kernel" ] || lacks "apt-get knows no linux-image-amd64 (run apt-get update; it takes Debian's kernel)"
    wanted=$(apt-get install --print-uris -qq -y --no-install-recommends "${packages[@]}") ||
        lacks "apt-get does not find ${packages[*]} (run apt-get update)"
    wanted=$(awk '{ sub(/_.*/, "", $2); print $2 }' <<<"$wanted")
    rm -rf "$vm/debs"
    mkdir -p "$vm/debs"
    say "downloading $kernel and $(wc -w <<<"$wanted") packages"
    # shellcheck disable=SC2086 # names
    (cd "$vm/debs" && apt-get download -qq "$kernel" $wanted 2>&1 | grep -v 'unsandboxed as root' >&2 || true)
    compgen -G "$vm/debs/linux-image-*.deb" >/dev/null || lacks "$kernel was not downloaded"
}

# Debian has /lib -> usr/lib: a folder of that name in the layer would hide the link.
merge_usr() {
    local part
    for part in lib lib64 bin sbin; do
        [ -d "$1/$part" ] && [ ! -L "$1/$part" ] || continue
        mkdir -p "$1/usr/$part"
        cp -al "$1/$part/." "$1/usr/$part/"
        rm -rf "${1:?}/$part"
    done
}

unpack() {
    local deb release
    rm -rf "$vm/layer" "$vm/initramfs"
    mkdir -p "$vm/layer" "$vm/share" "$vm/initramfs"/{bin,dev,proc,sys,host,layer,share,up,root,modules}
    for deb in "$vm"/debs/*.deb; do
        dpkg-deb -x "$deb" "$vm/layer"
    done
    merge_usr "$vm/layer"
    release=$(ls "$vm/layer/usr/lib/modules")
    mv "$vm/layer/boot/vmlinuz-$release" "$vm/kernel"
    # depmod and modprobe look for lib/modules.
    ln -s usr/lib "$vm/layer/lib"
    depmod -b "$vm/layer" "$release"
    for module in "${modules[@]}"; do
        modprobe -d "$vm/layer" -S "$release" --show-depends "$module" || fail "the kernel has no module $module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' >"$vm/modules"
    rm "$vm/layer/lib"
    while read -r module; do
        cp "${module/layer\/lib/layer/usr/lib}" "$vm/initramfs/modules/"
        basename "$module"
    done <"$vm/modules" >"$vm/initramfs/modules/list"
    cp "$(command -v busybox)" "$vm/initramfs/bin/busybox"
    cp "$parts/init" "$parts/start" "$vm/initramfs/"
    chmod +x "$vm/initramfs/init"
    (cd "$vm/initramfs" && find . | cpio -o -H newc --quiet | gzip -1) >"$vm/initrd.gz.new"
    mv "$vm/initrd.gz.new" "$vm/initrd.gz"
}

# The layer with libraries of another release. What this machine's apt knows is not changed.
add_release() {
    local apt=$vm/apt-$VM_RELEASE mirror wanted options part deb
    rm -rf "$apt" "$layer" "$layer.new"
    mkdir -p "$apt"/{state/lists,cache/archives}/partial "$apt/debs" "$apt/root"
    options=(-o "Dir::State=$apt/state" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache"
        -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=- -o Acquire::Languages=none)
    # shellcheck disable=SC2016 # for apt-get
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | head -n 1)
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-none} $VM_RELEASE main" >"$apt/sources.list"
    : >"$apt/status"
    say "downloading libfabric of $VM_RELEASE"
    apt-get "${options[@]}" update -qq >&2 || lacks "apt-get finds no Debian $VM_RELEASE"
    wanted=$(apt-get "${options[@]}" install --print-uris -qq -y --no-install-recommends libfabric1 ibverbs-providers) ||
        lacks "$VM_RELEASE has no libfabric1"
    wanted=$(awk '{ sub(/_.*/, "", $2); print $2 }' <<<"$wanted")
    # shellcheck disable=SC2086 # names
    (cd "$apt/debs" && apt-get "${options[@]}" download -qq $wanted 2>&1 | grep -v 'unsandboxed as root' >&2 || true)
    for deb in "$apt"/debs/*.deb; do
        dpkg-deb -x "$deb" "$apt/root"
    done
    cp -al "$vm/layer" "$layer.new"
    for part in usr/lib/x86_64-linux-gnu usr/lib64 etc/libibverbs.d; do
        mkdir -p "$layer.new/$part"
        cp -al --remove-destination "$apt/root/$part/." "$layer.new/$part/"
    done
    rm -rf "$apt"
    mv "$layer.new" "$layer"
}

make_vm() {
    mkdir -p "$vm"
    compgen -G "$vm/debs/linux-image-*.deb" >/dev/null || download
    [ "$vm/initrd.gz" -nt tools/vm.sh ] && [ "$vm/initrd.gz" -nt "$parts/init" ] && [ "$vm/initrd.gz" -nt "$parts/start" ] || { unpack; rm -rf "$vm"/layer-*; }
    [ -d "$layer" ] || add_release
}

# Software that says it is KVM (as clouds have it) does not run any kernel: only the processor's own.
accelerator() {
    if [ -w /dev/kvm ] && { [ -d /sys/module/kvm_intel ] || [ -d /sys/module/kvm_amd ]; }; then
        echo "-accel kvm -cpu host"
    else
        echo "-accel tcg,thread=multi -cpu max"
    fi
}

share_of() { # name, folder, further options
    echo "-fsdev local,id=$1,path=$2,security_model=none$3 -device virtio-9p-pci,fsdev=$1,mount_tag=$1"
}

boot() {
    # A clock that is read without leaving the machine, also where it is emulated; a busy host delays the timer that the kernel
    # would try out for longer than the kernel waits.
    local append="console=ttyS0 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check quiet"
    # Its rate, which the kernel else finds by that timer, so that time may pass ten times too fast there. Where a processor's
    # rate changes, it is not that of its clock.
    [ -e /sys/devices/system/cpu/cpu0/cpufreq ] ||
        append+=$(awk '/^cpu MHz/ { printf " tsc_early_khz=%d", 1000 * $4; exit }' /proc/cpuinfo)
    append+=" ${VM_APPEND:-}"
    # shellcheck disable=SC2046 # words
    qemu-system-x86_64 -name weft-test -machine q35 $(accelerator) -smp "${VM_CPUS:-2}" -m "${VM_MEMORY:-4096}" \
        -nodefaults -no-user-config -display none -no-reboot -serial "file:$vm/console.log" \
        -kernel "$vm/kernel" -initrd "$vm/initrd.gz" -append "$append" -device virtio-rng-pci \
        $(share_of host / ,readonly=on,multidevs=remap) $(share_of layer "$layer" ,readonly=on) \
        $(share_of share "$vm/share" "") ${VM_QEMU:-} </dev/null >"$vm/qemu.log" 2>&1 &
    qemu=$!
}

run() {
    rm -f "$vm/share"/{command,output,status,up}
    {
        echo "cd $(printf %q "$PWD")"
        export -p | grep -E '^declare -x (WEFT_|FI_|SHORT=|LD_LIBRARY_PATH=)' || true
        printf '%q ' "$@"
    } >"$vm/share/command"
    : >"$vm/share/output"
    boot
    trap 'kill $qemu 2>/dev/null || true' EXIT
    trap 'exit 130' INT TERM HUP
    tail -f -n +1 --pid=$qemu "$vm/share/output" &
    local end=$((SECONDS + ${VM_LIMIT:-3600})) begin=$SECONDS
    while kill -0 $qemu 2>/dev/null; do
        sleep 0.2
        if [ ! -e "$vm/share/up" ] && [ $((SECONDS - begin)) -gt 600 ]; then
            tail -n 5 "$vm/qemu.log" "$vm/console.log" >&2
            fail "the machine did not start within 600 s"
        fi
        [ $SECONDS -lt $end ] || fail "no end within ${VM_LIMIT:-3600} s (VM_LIMIT)"
    done
    wait
    [ -s "$vm/share/status" ] && return "$(cat "$vm/share/status")"
    tail -n 5 "$vm/qemu.log" "$vm/console.log" >&2
    fail "the machine ended before the command did"
}

[ $# -gt 0 ] || { sed -n '2,/^set /p' "$0" | sed '$d;s/^# \{0,1\}//'; exit 2; }
needs
mkdir -p "${vm%/vm}"
exec 9>"${vm%/vm}/.vm.lock"
flock -n 9 || fail "another one runs with this target folder"
make_vm
[ "$*" = make ] || run "$@"
