#!/usr/bin/env bash
# Two processes move random pages: over tcp and shm on this machine, and between two network namespaces that four
# virtual cables join, which is as near to two hosts with four NICs as one machine comes.
#     tools/demo.sh RANDOM_FILL
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "$0")" && pwd)
fill=$(realpath "${1:?where is random_fill?}")
logs=$(mktemp -d)
show=yes
# shellcheck source=tools/pair.sh
. "$here/pair.sh"

rails=4
spaces=("weft-prefill-$$" "weft-decode-$$")
made=()
results=()
failures=0

clean_up() {
    end_prefill
    for space in "${made[@]}"; do ip netns del "$space" 2>/dev/null || true; done # its cables go with it
    rm -rf "$logs"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

title() { printf '\n== %s\n' "$1"; }

act() { # log name, title, host, options of both sides, options of the decode side
    title "$2"
    if run_pair "$1" "$3" "$4" "$5"; then
        results+=("$2" "    $(cat "$logs/$1.prefill.out")" "    $(cat "$logs/$1.decode.out")")
    else
        cat "$logs/$1".*.out "$logs/$1.prefill.err" 2>/dev/null || true
        results+=("$2" "    FAILED: see above")
        failures=$((failures + 1))
    fi
}

in_spaces() { # side (0 or 1), command...
    ip netns exec "${spaces[$1]}" "${@:2}"
}

join_spaces() {
    local side rail
    for side in 0 1; do
        ip netns add "${spaces[side]}" || return 1
        made+=("${spaces[side]}")
        in_spaces "$side" ip link set lo up || return 1
    done
    for ((rail = 0; rail < rails; rail++)); do
        ip -n "${spaces[0]}" link add "rail$rail" mtu 9000 type veth \
            peer name "rail$rail" mtu 9000 netns "${spaces[1]}" || return 1
        for side in 0 1; do
            ip -n "${spaces[side]}" addr add "10.77.$rail.$((side + 1))/24" dev "rail$rail" || return 1
            ip -n "${spaces[side]}" link set "rail$rail" up || return 1
        done
    done
    cables_are_up
}

cables_are_up() { # The kernel takes a moment, and libfabric leaves out what is not running.
    local side try
    for side in 0 1; do
        for ((try = 0; try < 100; try++)); do
            [ "$(ip -n "${spaces[side]}" -br link show up type veth | grep -c ' UP ')" = "$rails" ] && continue 2
            sleep 0.05
        done
        echo "the cables do not come up"
        return 1
    done
}

two_hosts() {
    local what="tcp, between two network namespaces joined by $rails cables" why=
    if [ "$(id -u)" != 0 ]; then why="only root can make them"
    elif ! command -v ip >/dev/null; then why="iproute2 is not installed"
    elif ! join_spaces >"$logs/join" 2>&1; then why="this machine does not let root make them: $(tail -n 1 "$logs/join")"
    fi
    if [ -n "$why" ]; then
        results+=("$what" "    skipped: $why")
        return
    fi
    prefill_in=(ip netns exec "${spaces[0]}")
    decode_in=(ip netns exec "${spaces[1]}")
    act namespaces "$what" 10.77.0.1 "--fabric tcp --rails $rails" "--pages 1000 --page-size 64K --layers 4"
}

act tcp "tcp, on this machine" 127.0.0.1 "--fabric tcp --rail-names lo" "--pages 1000 --page-size 64K"
act shm "shm, on this machine" 127.0.0.1 "--fabric shm" "--pages 1000 --page-size 64K"
two_hosts

title "What was moved, and checked"
printf '%s\n' "${results[@]}"
[ "$failures" = 0 ]
