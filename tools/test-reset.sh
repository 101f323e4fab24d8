#!/usr/bin/env bash
# The machine of a peer is reset in the middle of transfers over tcp, as if its power had failed
# (ffi-tests/failure/lab_reset.c): a virtual machine (tools/vm.sh), joined to a network namespace by a tap. It starts
# again by itself, and runs the same command. One line for each case, and a last one with the count.
#     tools/test-reset.sh LIBDIR [ONLY]     ONLY: a part of the names of the cases to run
set -uo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --inside ]; then
    modprobe virtio_net || exit 1
    while [ -e /run/share/reset.silent ]; do sleep 0.2; done
    ip link set eth0 up && ip addr add 10.79.0.2/24 dev eth0 || exit 1
    WEFT_RESET_SHARE=/run/share exec "$2/lab_reset" guest
fi

libdir=$(realpath "${1:?where is libweft.so?}")
only=${2:-}
# shellcheck source=tools/cases.sh
. tools/cases.sh
# shellcheck source=tools/lab.sh
. tools/lab.sh

skipped() { echo "SKIPPED: $1"; exit 0; }
why=$(lab_missing)
[ -z "$why" ] || skipped "$why"
[ -c /dev/net/tun ] || skipped "there is no /dev/net/tun"
status=0
tools/vm.sh make || status=$?
[ $status != 77 ] || skipped "no virtual machine can be made here"
[ $status = 0 ] || exit 1

logs=$(mktemp -d) machine=
export WEFT_RESET_SHARE=$PWD/target/vm/share WEFT_RESET_MONITOR=$logs/monitor
out=$PWD/target/test-reset

end() {
    if [ -n "$machine" ]; then
        kill "$machine" 2>/dev/null
        wait "$machine" 2>/dev/null
        flock -w 60 target/.vm.lock true # QEMU ends, and gives this up, a moment later.
    fi
    lab_remove
    rm -rf "$logs" "$WEFT_RESET_SHARE"/reset.*
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mkdir -p "$out"
ln -sf "$libdir/libweft.so" "$out/libweft.so.0"
make -s -f ffi-tests/Makefile OUT="$out" lab_reset || exit 1
export LD_LIBRARY_PATH=$out
rm -f "$WEFT_RESET_SHARE"/reset.*
lab_sweep
lab_host left && lab_in left ip tuntap add rail0 mode tap && lab_in left ip link set rail0 up &&
    lab_in left ip addr add 10.79.0.1/24 dev rail0 || exit 1
VM_MEMORY=1024 VM_QEMU="-action reboot=reset -netdev tap,id=net0,ifname=rail0,script=no,downscript=no
    -device virtio-net-pci,netdev=net0 -qmp unix:$WEFT_RESET_MONITOR,server=on,wait=off" \
    ip netns exec "$(lab_space left)" tools/vm.sh tools/test-reset.sh --inside "$out" >"$logs/machine.out" 2>&1 &
machine=$!

resets() { # name, test
    local status=0
    skipped_by_name "$1" && return 0
    lab_in left timeout --foreground -k 5 3000 "$out/lab_reset" "$2" >"$logs/case.out" 2>"$logs/case.err" || status=1
    rm -f "$WEFT_RESET_SHARE/reset.silent"
    settle "$1" $status "$(tail -n 1 "$logs/case.out")"
}

resets "a machine is reset, and stays silent" peer_is_lost_by_its_silence
resets "a machine is reset, and comes back" peer_is_lost_when_its_machine_is_back

counted
