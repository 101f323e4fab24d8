#!/usr/bin/env bash
# An emulated EFA: NICs of this host for the programs that run with it, below the system's own libibverbs, libefa and
# libfabric. README.md says what it is, and which faults it knows.
#     tools/efa/efa.sh start DIR NICS [OPTION...]     starts an emulator whose files are in DIR; options: of efa-emulator. With
#                                                     EFA_HOSTS=2 as many for a second host, each with EFA_GPUS GPUs
#     tools/efa/efa.sh run DIR COMMAND...             the command sees the devices (EFA_ROOT=FOLDER: in a root of another system,
#                                                     with the folders in EFA_FOLDERS of this one;
#                                                     EFA_HOST=1: on the second host)
#     tools/efa/efa.sh tell DIR WORDS...              a fault, or "counts"
#     tools/efa/efa.sh stop DIR
# What `run` mounts is seen by the command alone. It needs root, or a kernel that gives users namespaces of their own.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
built=${EFA_BUILT:-$(cd "$here/../.." && pwd)/target/efa}

start() { # dir, nics, options...
    local dir=$1 nics=$2 kind=p5 i hosts=${EFA_HOSTS:-1}
    shift 2
    for ((i = 1; i <= $#; i++)); do
        [ "${!i}" != --kind ] || { i=$((i + 1)); kind=${!i}; }
    done
    make -s -f "$here/Makefile" OUT="$built"
    mkdir -p "$dir"
    dir=$(cd "$dir" && pwd)
    for ((i = 0; i < hosts; i++)); do
        "$here/sysfs.sh" "$dir/sys$i" "$nics" "$kind" $((i * nics)) "${EFA_GPUS:-0}"
    done
    rm -f "$dir"/{uverbs*,control}
    "$built/efa-emulator" "$dir" --nics $((hosts * nics)) "$@" >"$dir/log" 2>&1 </dev/null &
    echo $! >"$dir/pid"
    for ((i = 0; i < 200; i++)); do
        [ ! -e "$dir/control" ] || return 0
        kill -0 "$(cat "$dir/pid")" 2>/dev/null || break
        sleep 0.05
    done
    cat "$dir/log" >&2
    return 1
}

stop() { # dir
    kill "$(cat "$1/pid")" 2>/dev/null || true
    rm -f "$1/pid" "$1/control"
}

tell() { # dir, words...
    local dir=$1 nic=${3-} state node made
    "$built/efa-emulator" --tell "$@" || return
    for node in "$dir"/sys*/class/infiniband_verbs/uverbs*; do
        [[ "${2-} $([ "$nic" = all ] || echo "${node##*uverbs}")" = "nic ${nic#all}" ]] || continue
        case "${4-} ${5-}" in
        "event port-down" | "event port-up")
            state="4: ACTIVE"
            [ "$5" = port-up ] || state="1: DOWN"
            echo "$state" >"$node/../../infiniband/$(<"$node/ibdev")/ports/1/state" ;;
        "reset ") # Another device has the name then.
            made=$(mktemp -d "$dir/made.XXXXXX")
            cp -a "$node/." "$made" && mv "$node" "$made/before" && mv "$made" "$node" ;;
        esac
    done
}

run() { # dir, command...
    local dir new=(unshare -m)
    dir=$(cd "$1" && pwd)
    shift
    [ "$(id -u)" = 0 ] || new=(unshare -rm)
    exec "${new[@]}" "$here/inside.sh" "$dir" "$built/efa-shim.so" "$@"
}

case ${1:-} in
start | stop | run | tell) "$@" ;;
*)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2 ;;
esac
