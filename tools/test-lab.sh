#!/usr/bin/env bash
# Two hosts in network namespaces: random fill over the networks that hosts have, and streams of transfers while rails
# fail (ffi-tests/failure/lab_*.c); three hosts in chaos (tools/chaos.sh). One line for each case, and a last one with the count.
# Only root can make them; otherwise it says that it skips.
#     tools/test-lab.sh RANDOM_FILL [ONLY]     ONLY: a part of the names of the cases to run
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fill=$(realpath "${1:?where is random_fill?}")
only=${2:-}
# shellcheck source=tools/pair.sh
. "$here/pair.sh"
# shellcheck source=tools/cases.sh
. "$here/cases.sh"
# shellcheck source=tools/lab.sh
. "$here/lab.sh"

why=$(lab_missing)
if [ -n "$why" ]; then
    skip "the lab's tests" "$why"
    counted
    exit
fi
logs=$(mktemp -d)
mkdir "$logs.programs"
library=$(dirname "$fill")/../release/libweft.so
trap 'end_prefill; lab_remove; rm -rf "$logs" "$logs.programs"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The decode side, on the right host, says how many of its rails it used: they must be as many as expected.
moves() { # name, options of the lab, rails that each side must have: left, right
    local name=$1 shape used status=0
    skipped_by_name "$name" && return 0
    rm -f "$logs"/*
    read -ra shape <<<"$2"
    lab_reset
    if ! { lab_options "${shape[@]}" && lab_make; } >"$logs/lab.out" 2>&1; then
        settle "$name" 1 "the lab could not be made"
        lab_remove
        return
    fi
    prefill_in=(ip netns exec "$(lab_space left)")
    decode_in=(ip netns exec "$(lab_space right)")
    run_pair case "$lab_left_address" "--fabric tcp" "--pages 1000 --page-size 64K --layers 2" || status=1
    lab_remove
    grep -q '^prefill: verified: ' "$logs/case.prefill.out" || status=1
    grep -q '^decode: verified: ' "$logs/case.decode.out" || status=1
    used="$(grep -oE '[0-9]+ rails?' "$logs/case.prefill.out"), $(grep -oE '[0-9]+ rails? \([0-9]+ lanes?\)' "$logs/case.decode.out")"
    [[ "$used" =~ ^$3\ rails?,\ $4\ rails?\  ]] || { status=1; used+=", but $3 and $4 were expected"; }
    settle "$name" "$status" "$used"
}

# A C program that knows only weft.h, beside the library that random fill uses.
build() { # program
    ln -sf "$library" "$logs.programs/libweft.so.0"
    make -s -f "$here/../ffi-tests/Makefile" OUT="$logs.programs" "$1"
}

# One test of such a program, which enters both hosts and moves the links itself.
fails() { # name, program, test
    local name=$1 status=0
    skipped_by_name "$name" && return 0
    rm -f "$logs"/*
    lab_reset
    if ! { lab_options --rails 4 --rate 100mbit && lab_make; } >"$logs/lab.out" 2>&1; then
        settle "$name" 1 "the lab could not be made"
        lab_remove
        return
    fi
    [ -x "$logs.programs/$2" ] || build "$2" >"$logs/build.out" 2>&1
    WEFT_LAB_LEFT=$(lab_space left) WEFT_LAB_RIGHT=$(lab_space right) LD_LIBRARY_PATH=$logs.programs \
        "${guard[@]}" "$logs.programs/$2" "$3" >"$logs/case.out" 2>"$logs/case.err" || status=1
    lab_remove
    settle "$name" "$status" "$(tail -n 1 "$logs/case.out")"
}

# Everything at once, for half a minute, by a seed that plays every fault in it: two kills, three stops, a restart, a host
# that is cut off. Other seeds, and longer: `make chaos`.
chaos() { # name
    local name=$1 status=0
    skipped_by_name "$name" && return 0
    rm -f "$logs"/*
    timeout --foreground -k 5 300 "$here/chaos.sh" "$(dirname "$library")" 0.5 1851 >"$logs/case.txt" 2>"$logs/case.err" || status=1
    # What was not right comes first: a part of the table says nothing.
    sed -n '/must be 0$/p; /^longest_stall_ms/,$p' "$logs/case.txt" | head -n 12 >"$logs/wrong.out"
    settle "$name" "$status" "$(sed -n 's/^\(operations\|faults\)  *\([0-9]*\)$/\2 \1/p' "$logs/case.txt" | paste -sd' ')"
    [ "$status" = 0 ] || tail -n 100 "$logs/case.txt" | sed 's/^/        /'
}

# A lab whose owner was killed is removed by the next one, with what still runs in it.
sweeps() {
    local name="what a killed lab left is removed" owner space left='' try
    skipped_by_name "$name" && return 0
    rm -f "$logs"/*
    "$here/lab.sh" --rails 1 "exec sleep 60" &
    owner=$!
    space=$lab_prefix-$owner-left
    for ((try = 0; try < 100; try++)); do
        left=$(ip netns pids "$space" 2>/dev/null)
        [ -n "$left" ] && break
        sleep 0.05
    done
    kill -KILL "$owner"
    wait "$owner" 2>/dev/null
    lab_sweep
    for ((try = 0; try < 20; try++)); do # It dies a moment later, and may stay a zombie, which has no command line.
        grep -q . "/proc/$left/cmdline" 2>/dev/null || break
        sleep 0.05
    done
    [ -n "$left" ] && [ "$try" -lt 20 ] && ! ip netns list | grep -q "^$space"
    settle "$name" $? ""
}

moves "4 rails" "--rails 4" 4 4
moves "behind a router, 4 rails" "--rails 4 --router" 4 4
moves "1 rail here, 4 there" "--rails 1 --right-rails 4" 1 4
moves "4 rails here, 1 there" "--rails 4 --right-rails 1" 4 1
moves "3 rails here, 2 there" "--rails 3 --right-rails 2" 3 2
moves "/32 addresses" "--rails 4 --host-routes" 4 4
moves "/32 addresses behind a router" "--rails 2 --host-routes --router" 2 2
moves "docker0 with the same address on both" "--rails 2 --bridge docker0" 2 2
moves "another bridge with the same address" "--rails 2 --bridge br-lan" 2 2
moves "a rail that is down" "--rails 3 --down 2" 2 2
sweeps
fails "a rail fails and comes back" lab_rails failed_rail_comes_back
fails "a rail flaps" lab_rails lab_flapping_rail_loses_nothing
fails "three of four rails fail" lab_rails three_of_four_rails_fail
fails "a rail comes late" lab_rails late_rail_is_used
fails "a rail loses what is sent" lab_rails silent_loss_of_data_fails_the_rail
fails "a rail loses the answers" lab_rails silent_loss_of_acknowledgements_fails_the_rail
fails "nothing lands later" lab_rails no_write_lands_after_its_completion
fails "one of several paths drops packets of full size" lab_log lane_that_only_small_frames_pass_is_named
fails "the only path does" lab_log only_lane_that_only_small_frames_pass_is_named
fails "the link of our own NIC is down" lab_log own_link_that_is_down_is_named
fails "an idle host is cut off" lab_liveness idle_host_is_lost_when_cut_off
fails "the only link comes back" lab_resume only_link_returns
fails "the same, and something expires" lab_resume only_link_returns_after_an_operation_expired
chaos "chaos between three hosts"

counted
