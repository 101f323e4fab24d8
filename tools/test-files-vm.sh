#!/usr/bin/env bash
# Files as memory in a virtual machine (tools/vm.sh), on an NVMe that QEMU emulates:
#   faults   every fault that device-mapper makes of a disk, on the block device and on ext4 on it; by io_uring and by threads
#   beside   the same disk by the kernel's NVMe over tcp, in turns: file_over_nvmeof_tcp
#   durable  a disk that drops at each power cut what was written since its last flush: nothing that completed WEFT_DURABLE is
#            lost; without the option, something is
#   checkpoint  the same disk, while libweft.checkpoint saves: the last checkpoint or the new one is there, else it is torn
# One line for each case, and a last one with the count; figures go to target/figures.
#     tools/test-files-vm.sh LIBDIR [PARTS]     with libweft_simulated.so; PARTS: of the four above
# SHORT=1: a few minutes. FABRICS="tcp verbs": fabrics of the faults (tcp); verbs is over soft-RoCE. T: a part of the names of
# the faults. CUTS: power cuts (20 of each). WEFT_SEED: of the times of the cuts.
set -uo pipefail
cd "$(dirname "$0")/.."
share=/run/share # in the machine; outside target/vm/share

# ---- Inside ----

# A case by its name, for as long as that takes. What a suspended disk or a frozen file system holds does not end before.
tried() { # name, seconds, words
    local name=$1 limit=$2 log=/run/case.log status=0 begin=$SECONDS
    shift 2
    [[ $name == *"${WEFT_TEST_ONLY:-}"* ]] || return 0
    "$@" >$log 2>&1 </dev/null &
    local running=$! tries
    for ((tries = 0; tries < limit * 5; tries++)); do
        kill -0 $running 2>/dev/null || break
        sleep 0.2
    done
    if kill -0 $running 2>/dev/null; then
        # A kernel that fails lets its tests hang, too.
        { echo "it did not end within $limit s"; dmesg --level=emerg,alert,crit | head -n 5; } >>$log
        kill -9 $running
        dmsetup resume weft 2>/dev/null
        fsfreeze --unfreeze /run/weft-disk 2>/dev/null
    fi
    wait $running || status=$?
    case $status in
    0) echo "ok $name, $((SECONDS - begin)) s" ;;
    77) echo "skipped $name: $(sed -n 's/^SKIPPED: //p' $log | head -n 1)" ;;
    *)
        echo "FAILED $name, status $status"
        tail -n 12 $log | cut -c 1-300 | sed 's/^/    | /' ;;
    esac
}

faults() { # programs
    local fabric kind by test choice=. patience tests
    read -r patience _ </proc/uptime
    modprobe -a dm-mod dm-flakey dm-delay ext4 || return 1
    export DM_DISABLE_UDEV=1 WEFT_DISK=/dev/nvme0n1 WEFT_TEST_PATIENCE=${WEFT_TEST_PATIENCE:-$((4 + ${patience%.*} / 10))}
    export WEFT_TEST_LIBRARY=$1/libweft.so.0
    [ -z "${SHORT:-}" ] || choice='bad_blocks|suspended_disk_is_named|full_file|revoke_waits'
    tests=$("$1/lab_disk" --list | cut -d' ' -f1 | grep -E "$choice")
    for fabric in ${WEFT_TEST_FABRICS:-tcp}; do
        export WEFT_TEST_FABRIC=$fabric
        if [ "$fabric" = verbs ]; then
            tools/test-verbs.sh --cables 2 || return 1
            export WEFT_RAILS=left0,left1
        fi
        for by in io_uring threads; do
            [ -z "${SHORT:-}" ] || [ $by = io_uring ] || continue
            for kind in raw ext4; do
                for test in $tests; do
                    WEFT_DISK_KIND=$kind WEFT_FILES=${by#io_uring} tried "$fabric $by $kind $test" $((50 * WEFT_TEST_PATIENCE)) "$1/lab_disk" "$test"
                done
            done
        done
        # The tests of every machine that have no fake disk, on this one.
        mkfs.ext4 -q -F $WEFT_DISK && mount $WEFT_DISK /var/tmp || return 1
        for test in $("$1/file_memory" --list | awk -v fabric="$fabric" '$2 ~ fabric && !/disk_that|page_cache|revoke/ { print $1 }'); do
            [ -z "${SHORT:-}" ] || break
            tried "$fabric ext4 file_memory.$test" $((30 * WEFT_TEST_PATIENCE)) "$1/file_memory" "$test"
        done
        umount /var/tmp
    done
}

# Exports the disk by the kernel's own target, and connects to it: its name is a line of $connected.
connect_kernel() { # tcp or rdma, address
    local target=/sys/kernel/config/nvmet at=/sys/class/nvme tries
    modprobe -a configfs nvmet "nvmet-$1" "nvme-$1" || return 1
    mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
    mkdir -p $target/subsystems/weft-"$1"/namespaces/1 $target/ports/"${#1}" || return 1
    echo 1 >$target/subsystems/weft-"$1"/attr_allow_any_host
    echo -n /dev/nvme0n1 >$target/subsystems/weft-"$1"/namespaces/1/device_path
    echo 1 >$target/subsystems/weft-"$1"/namespaces/1/enable || return 1
    echo ipv4 >$target/ports/"${#1}"/addr_adrfam
    echo "$1" >$target/ports/"${#1}"/addr_trtype
    echo "$2" >$target/ports/"${#1}"/addr_traddr
    echo 4420 >$target/ports/"${#1}"/addr_trsvcid
    ln -s $target/subsystems/weft-"$1" $target/ports/"${#1}"/subsystems/weft-"$1" || return 1
    echo "transport=$1,traddr=$2,trsvcid=4420,nqn=weft-$1,keep_alive_tmo=120" >/dev/nvme-fabrics || return 1
    for ((tries = 0; tries < 100; tries++)); do
        for at in /sys/class/nvme/nvme*; do
            [ "$(cat "$at/transport")" = "$1" ] && disk=/dev/${at##*/}n1 && [ -b "$disk" ] && return 0
        done
        sleep 0.2
    done
    return 1
}

# Bytes go there and back over RDMA; it is no measure of speed, since soft-RoCE collapses under emulation.
kernel_over_rdma() {
    local disk=
    tools/test-verbs.sh --cables 1 && connect_kernel rdma 10.8.0.1 || return 1
    head -c 65536 /dev/urandom >/run/some
    dd "of=$disk" if=/run/some bs=4096 oflag=direct 2>/dev/null && dd if=/dev/nvme0n1 bs=4096 count=16 iflag=direct 2>/dev/null | cmp - /run/some
}

# Its words come out as it goes, too, so that what hangs is seen.
watched() { "$@" 2>&1 | tee -a /proc/self/fd/3; }

beside() { # programs
    local disk=
    connect_kernel tcp 127.0.0.1 || { echo "FAILED the kernel's target over tcp"; return 1; }
    export WEFT_DISK=/dev/nvme0n1 WEFT_DISK_OF_KERNEL=$disk WEFT_TEST_FABRIC=tcp WEFT_TEST_PATIENCE=20
    tried "beside the kernel's NVMe over tcp" 600 watched "$1/disk_figures" kernel 3>&1
    sed -n 's/^\(file_over_nvmeof_tcp[a-z_]*\) \([0-9.]*\)$/\1 \2/p' /run/case.log >>$share/figures
    [ -n "${SHORT:-}" ] || tried "the kernel's target over rdma moves bytes" 120 kernel_over_rdma
}

# Until the power fails; `looks`: only what is there.
durable() { # programs, writes or looks
    modprobe -a dm-mod ext4 || return 1
    export DM_DISABLE_UDEV=1 WEFT_DISK=/dev/vda WEFT_LEDGER=$share/ledger WEFT_TEST_FABRIC=tcp WEFT_TEST_PATIENCE=20
    "$1/lab_durable" "$2"
}

checkpoint() { # programs, writes or looks
    local folder=/run/checkpoints
    modprobe ext4 || return 1
    [ -s $share/ledger ] || mkfs.ext4 -q -F -E lazy_itable_init=0 /dev/vda || return 1
    mkdir -p $folder && mount /dev/vda $folder || return 1
    export WEFT_CONNECT_TIMEOUT=10m WEFT_TIMEOUT=10m
    WEFT_LIBRARY=$1/libweft.so.0 PYTHONPATH=python/src PYTHONDONTWRITEBYTECODE=1 "$WEFT_TEST_PYTHON" python/tests/checkpoint_cuts.py \
        $folder $share/ledger "$2"
}

if [ "${1:-}" = --inside ]; then
    modprobe -a nvme virtio_blk || exit 1
    export LD_LIBRARY_PATH=$3
    "$2" "${@:3}"
    exit
fi

# ---- Outside ----

libdir=$(realpath "${1:?where is libweft_simulated.so?}")
parts=${2:-faults beside durable checkpoint}
out=$PWD/target/test-files-vm inner=$PWD/target/vm/share
# shellcheck source=tools/cases.sh
. tools/cases.sh
status=0
tools/vm.sh make || status=$?
[ $status != 77 ] || { echo "SKIPPED: no virtual machine can be made here"; exit 0; }
[ $status = 0 ] || exit 1
for tool in fio dmsetup mkfs.ext4; do
    PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null || { echo "SKIPPED: $tool is missing (apt-get install fio dmsetup e2fsprogs)"; exit 0; }
done

work=$(mktemp -d) server= machine=
end_disk() {
    [ -z "$server" ] || kill "$server" 2>/dev/null
    server=
}
end() {
    end_disk
    [ -z "$machine" ] || { kill "$machine" 2>/dev/null && wait "$machine" 2>/dev/null; }
    [ ! -s "$work/pid" ] || kill -9 "$(cat "$work/pid")" 2>/dev/null
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mkdir -p "$out" target/figures
ln -sf "$libdir/libweft_simulated.so" "$out/libweft.so.0"
make -s -f ffi-tests/Makefile OUT="$out" lab_disk lab_durable disk_figures file_memory || exit 1
rm -f "$inner"/{figures,ledger}

keep_figure() { echo "$2" >"target/figures/$1"; echo "$1 $2"; }

# In the machine with a disk that is a file.
in_machine() { # part
    local line
    truncate -s 512M "$work/disk"
    # Linux 6.1 holds bytes that span two huge pages, as nvme-tcp sends them, for a breach, and stops its nvmet-tcp there.
    WEFT_TEST_ONLY=${T:-} WEFT_TEST_FABRICS=${FABRICS:-} VM_LIMIT=14400 VM_APPEND="hardened_usercopy=off ${VM_APPEND:-}" \
        VM_QEMU="-drive file=$work/disk,format=raw,if=none,id=disk,cache=writeback
        -device nvme,drive=disk,serial=disk" tools/vm.sh tools/test-files-vm.sh --inside "$1" "$out" >"$work/out" 2>&1 &
    machine=$!
    tail -f -n +1 --pid=$machine "$work/out" &
    wait $machine || failed=$((failed + 1))
    wait
    while read -r line; do
        case $line in
        "ok "*) passed=$((passed + 1)) ;;
        "FAILED "*) failed=$((failed + 1)) ;;
        "skipped "*) skipped=$((skipped + 1)) ;;
        esac
    done <"$work/out"
}

# ---- The disk that forgets ----

# Starts the machine, whose last words are in $work/out.
power_on() { # part, WEFT_FLUSH, writes or looks
    rm -f "$work/pid"
    WEFT_FLUSH=$2 VM_MEMORY=1536 VM_QEMU="-drive driver=nbd,server.type=unix,server.path=$work/nbd,if=none,id=disk,cache=writeback
        -device virtio-blk-pci,drive=disk -pidfile $work/pid" tools/vm.sh tools/test-files-vm.sh --inside "$1" "$out" "$3" >"$work/out" 2>&1 &
    machine=$!
}

ended() { grep -c ^ended "$inner/ledger" 2>/dev/null; }

# The machine writes until its power fails, at a random time.
power_cut() { # part, WEFT_FLUSH
    local before now least=30
    [ "$1" != checkpoint ] || least=2
    before=$(ended)
    power_on "$1" "$2" writes
    while now=$(ended); [ "${now:-0}" -lt $((${before:-0} + least)) ]; do
        kill -0 $machine 2>/dev/null || { cat "$work/out"; return 1; }
        sleep 0.1
    done
    sleep "$(awk "BEGIN { print $RANDOM / 16384 }")"
    kill -9 "$(cat "$work/pid")"
    wait $machine
    flock -w 60 target/.vm.lock true
}

# What the machine has found lost.
add_lost() {
    local more
    more=$(sed -n 's/^there [0-9]* lost //p' "$work/out")
    grep ^lost "$work/out" | head -n 4
    [ -n "$more" ] && lost=$((lost + more))
}

# What is lost after this many power cuts: $lost of $ended. Those between two checkpoints do not count.
cuts() { # part, WEFT_FLUSH, how many
    local i=0
    end_disk
    rm -f "$inner/ledger" "$work/image" "$work/nbd"
    python3 tools/vm/cached_disk.py "$work/nbd" "$work/image" $((256 << 20)) >"$work/disk.log" 2>&1 </dev/null &
    server=$!
    until [ "$(head -n 1 "$work/disk.log")" = "$server" ]; do
        kill -0 "$server" 2>/dev/null || { cat "$work/disk.log"; return 1; }
        sleep 0.1
    done
    lost=0
    while [ $i -lt "$3" ]; do
        power_cut "$1" "$2" || return 1
        add_lost || return 1
        [ "$1" = checkpoint ] && [[ $(tail -n 1 "$inner/ledger") = ended* ]] || i=$((i + 1))
        echo "power cut $i of $3: $(ended) have ended; $(grep '^there' "$work/out"); the disk: $(tail -n 1 "$work/disk.log")"
    done
    power_on "$1" "$2" looks
    wait $machine || { cat "$work/out"; return 1; }
    add_lost
}

# Figures: how many cuts, and what they lost.
forgetful_disk() { # part, what is cut, two figures
    local many=${CUTS:-20}
    [ -z "${SHORT:-}" ] || many=${CUTS:-2}
    RANDOM=${WEFT_SEED:-$RANDOM}
    if cuts "$1" "${FLUSH:-durable}" "$many"; then
        settle "power cuts of $2" "$lost" "$lost lost by $many"
        keep_figure "$3" "$many"
        keep_figure "$4" "$lost"
    else
        settle "power cuts of $2" 1 "the machine did not write"
        return 1
    fi
    if cuts "$1" none 1; then
        settle "$2 without a flush: something is lost" $((lost == 0)) "$lost lost"
    else
        settle "$2 without a flush: something is lost" 1 "the machine did not write"
    fi
}

for part in $parts; do
    case $part in
    durable) forgetful_disk durable "durable writes" durable_runs durable_lost ;;
    checkpoint)
        WEFT_TEST_PYTHON=$(python3 -c 'import sys; print(sys.executable)')
        export WEFT_TEST_PYTHON
        forgetful_disk checkpoint "saves of checkpoints" checkpoint_cuts checkpoint_torn_by_cuts &&
            keep_figure checkpoint_torn "$(cat target/figures/checkpoint_torn_by_* | awk '{ all += $1 } END { print all }')" ;;
    *)
        before=$failed
        in_machine "$part"
        [ "$part" != faults ] || keep_figure file_fault_findings_vm $((failed - before)) ;;
    esac
done
if [ -s "$inner/figures" ]; then
    while read -r name value; do keep_figure "$name" "$value"; done <"$inner/figures"
fi
counted
