#!/usr/bin/env bash
# Random fill in all its shapes, over tcp and host: one line for each case, and a last one with the count.
#     tools/test-random-fill.sh RANDOM_FILL [ONLY]     ONLY: a part of the names of the cases to run
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fill=$(realpath "${1:?where is random_fill?}")
only=${2:-}
logs=$(mktemp -d)
# shellcheck source=tools/pair.sh
. "$here/pair.sh"
# shellcheck source=tools/cases.sh
. "$here/cases.sh"
trap 'end_prefill; rm -rf "$logs"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

options_of() { # fabric
    case $1 in
        tcp) echo "--fabric tcp --rail-names lo" ;;
        *) echo "--fabric $1" ;;
    esac
}

moves() { # name, fabrics, options of both sides, options of the decode side
    local fabric name status figures
    for fabric in $2; do
        name="$fabric: $1"
        skipped_by_name "$name" && continue
        rm -f "$logs"/*
        run_pair case 127.0.0.1 "$(options_of "$fabric") $3" "$4"
        status=$?
        # The word of the exit status is not enough: both must have said so.
        grep -q '^prefill: verified: ' "$logs/case.prefill.out" || status=1
        grep -q '^decode: verified: ' "$logs/case.decode.out" || status=1
        figures=$(grep -oE '[0-9.]+ s, [0-9.]+ Gbps' "$logs/case.prefill.out")
        settle "$name" "$status" "$figures"
    done
}

# A wrong command line is answered with a message and exit status 2.
refuses() { # words of the message, command line...
    local wanted=$1 name="command line: ${*:2}"
    shift
    skipped_by_name "$name" && return
    rm -f "$logs"/*
    timeout 300 "$fill" "$@" >"$logs/case.out" 2>"$logs/case.err" </dev/null
    [ $? = 2 ] && grep -qF -- "$wanted" "$logs/case.err"
    settle "$name" $? ""
}

# What cannot be done ends with exit status 1 and a message, in time.
fails() { # name, words of the message, command line...
    local name=$1 wanted=$2
    shift 2
    skipped_by_name "$name" && return
    rm -f "$logs"/*
    timeout 300 "$fill" "$@" >"$logs/case.out" 2>"$logs/case.err" </dev/null
    [ $? = 1 ] && grep -qF -- "$wanted" "$logs/case.err"
    settle "$name" $? ""
}

# The prefill side dies once they are connected: the decode side names what happened, and ends.
loses_its_peer() { # fabric
    local name="$1: the prefill side is killed" both tries status
    skipped_by_name "$name" && return
    rm -f "$logs"/*
    read -ra both <<<"$(options_of "$1")"
    # Without a guard around it, its process id is the program's.
    local guard=()
    start_prefill case 127.0.0.1 "${both[@]}" || { settle "$name" 1 ""; return; }
    timeout 300 "$fill" decode --connect "$place" "${both[@]}" --pages 3 --page-size 256M --total-pages 4 --timeout 20 \
        >"$logs/case.decode.out" 2>"$logs/case.decode.err" </dev/null &
    local decode_pid=$!
    for ((tries = 0; tries < 3000; tries++)); do
        grep -q '^prefill: connecting' "$logs/case.prefill.err" && break
        sleep 0.01
    done
    kill -KILL "$prefill_pid"
    end_prefill
    wait "$decode_pid" 2>/dev/null
    status=$?
    [ "$status" = 1 ] && grep -q 'WEFT_ERR_PEER_LOST\|WEFT_ERR_TIMED_OUT' "$logs/case.decode.err"
    settle "$name" $? ""
}

both="tcp host"
moves "1000 x 64 KiB" "$both" "" "--pages 1000 --page-size 64K"
moves "20,000 x 4 KiB" "$both" "" "--pages 20000 --page-size 4K"
moves "3 x 256 MiB" "$both" "" "--pages 3 --page-size 256M --total-pages 4"
moves "1 page" "$both" "" "--pages 1"
moves "1 page of 1 byte" "$both" "" "--pages 1 --page-size 1"
moves "0 pages" "$both" "" "--pages 0"
moves "adjacent pages" "$both" "" "--pages 1000 --page-size 64K --adjacent"
moves "every page there is" "$both" "" "--pages 1000 --page-size 4K --total-pages 1000"
moves "1000 x 4097 bytes" "$both" "" "--pages 1000 --page-size 4097"
moves "halves of pages of twice the size" "$both" "" "--pages 1000 --page-size 64K --page-stride 128K --page-offset 64K"
moves "odd stride and offset" "$both" "" "--pages 500 --page-size 4097 --page-stride 10007 --page-offset 123"
moves "80 layers" "$both" "" "--pages 200 --page-size 16K --layers 80"
moves "80 layers, parts of pages" "$both" "" "--pages 50 --page-size 8K --page-stride 32K --page-offset 16K --layers 80"
moves "100,000 x 512 bytes (a long request)" "$both" "" "--pages 100000 --page-size 512"
moves "manual progress" "$both" "--manual" "--pages 1000 --page-size 64K --layers 2"
moves "4 rails, 2 workers" "tcp" "--rails 4 --workers 2" "--pages 1000 --page-size 64K --layers 4"
moves "4 rails, manual progress" "tcp" "--rails 4 --manual" "--pages 2000 --page-size 4K --layers 4"
refuses "must be prefill or decode" fill
refuses "HOST:PORT" prefill
refuses "not a number" decode --connect localhost:1 --pages many
refuses "must be from 1 to 64" decode --connect localhost:1 --rails 65
refuses "would overlap" decode --connect localhost:1 --page-size 64K --page-stride 4K
refuses "fewer than" decode --connect localhost:1 --pages 10 --total-pages 9
refuses "belongs to the decode side" prefill --listen localhost:0 --pages 10
fails "a fabric that does not exist" "WEFT_ERR_" prefill --listen 127.0.0.1:0 --fabric carrier-pigeon
fails "nobody listens" "cannot connect" decode --connect 127.0.0.1:1 --fabric tcp --rail-names lo --pages 1 --timeout 1
loses_its_peer tcp

counted
