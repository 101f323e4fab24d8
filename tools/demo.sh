#!/usr/bin/env bash
# Two processes move random pages: over tcp and shm on this machine, and between two network namespaces that four
# virtual cables join, which is as near to two hosts with four NICs as one machine comes.
#     tools/demo.sh RANDOM_FILL
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fill=$(realpath "${1:?where is random_fill?}")
logs=$(mktemp -d)
show=yes
# shellcheck source=tools/pair.sh
. "$here/pair.sh"
# shellcheck source=tools/lab.sh
. "$here/lab.sh"

results=()
failures=0

clean_up() {
    end_prefill
    lab_remove
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

two_hosts() {
    local what="tcp, between two network namespaces joined by $lab_rails cables" why
    why=$(lab_missing)
    if [ -z "$why" ] && ! lab_make >"$logs/join" 2>&1; then
        why="this machine does not let root make them: $(tail -n 1 "$logs/join")"
    fi
    if [ -n "$why" ]; then
        results+=("$what" "    skipped: $why")
        return
    fi
    prefill_in=(ip netns exec "$(lab_space left)")
    decode_in=(ip netns exec "$(lab_space right)")
    act namespaces "$what" "$lab_left_address" "--fabric tcp --rails $lab_rails" "--pages 1000 --page-size 64K --layers 4"
}

act tcp "tcp, on this machine" 127.0.0.1 "--fabric tcp --rail-names lo" "--pages 1000 --page-size 64K"
act shm "shm, on this machine" 127.0.0.1 "--fabric shm" "--pages 1000 --page-size 64K"
two_hosts

title "What was moved, and checked"
printf '%s\n' "${results[@]}"
[ "$failures" = 0 ]
