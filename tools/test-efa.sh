#!/usr/bin/env bash
# Weft over libfabric's own efa provider, on emulated EFA NICs (tools/efa): the device model's tests, programs of others,
# random_fill over 1 to 32 NICs and with faults, the C tests that any network fabric passes, and Weft beside Mooncake's engine.
# One line a test; a last line that counts them. Needs root for the system of another Debian.
#     tools/test-efa.sh LIBDIR RANDOM_FILL [FILTER]          FILTER: a part of the tests' names
#     tools/test-efa.sh --chaos LIBDIR MINUTES [SEED]        three hosts whose NICs, cables and processes fail: a ledger
#     tools/test-efa.sh --deaths LIBDIR COUNT [SEED]         one NIC of four dies under load, again and again
#     tools/test-efa.sh --root SYSTEM                        makes the root of a system, and prints where it is
# Systems: 117, libfabric 1.17 of Debian 12 (fabric efa); 21, libfabric 2.1 of Debian 13 (efa-direct), and 21-emulated, the
# same over a device that has no RDMA writes (efa); other, the library that WEFT_LIBFABRIC names. Names begin with them.
# STAGED=1: the tests of memory that no NIC reaches, with a LIBDIR whose library has fake devices (tools/test-staged.sh), over 21.
# SHORT=1: a choice that takes a few minutes. WEFT_TEST_JOBS: tests at once (2).
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=$root/target/test-efa
short=${SHORT:-}
# shellcheck source=tools/roots.sh
. tools/roots.sh

# ---- What is run ----

# What does not fit, and why: a pattern of names, and a reason.
unfit=(
    '^(device|device_kinds|device_near|disks|durable|file_memory|watches|simulated|engine)\.|it is about simulated NICs or devices'
    '^(log|statistics|end_to_end|no_libfabric|no_memory)\.|it names other fabrics'
    '^ghosts\.|over EFA, writes of a lost peer may land late in memory without grants (weft.h)'
    '^unauthenticated\.|it attacks the sockets of tcp'
    '_4_gib|it moves more than 4 GiB, and here the CPU does that'
    '^(network\.dead_peer_is_lost_although_its_children_live|killed\.death_is_seen_though_a_forked_child_lives)$|a forked child of a dead process keeps its device open'
    '^transfers\.(stopped_peer_delays_no_completion|paused_peer_(of_one_rail_)?stays_connected|deadlines_are_kept|late_read_changes_no_memory)$|a NIC serves the requests of a process that is stopped, too'
    '^resume\.stopped_peer_(counts_each_arrival|receives_each_notification)_once$|a NIC serves the requests of a process that is stopped, too'
    '^reasons\.ends_are_explained$|it names other fabrics'
    '^files\.(truncated_(source|target)_fails_its_operations_alone|file_that_shrinks_under_load_loses_no_peer)$|a NIC keeps the pages of a file that is truncated'
    '^standard\.|the lowest descriptors become libfabric'"'"'s own'
    '^settings\.endpoint_memory_is_limited$|buffers that libfabric keeps for an EFA take 180 MB'
    '^crowd\.endpoint_serves_a_thousand_peers$|a NIC has 256 queue pairs'
)
[ -z "${STAGED:-}" ] || { unfit=() short=; }
# The same, of fabrics whose writes libfabric emulates (117, 21-emulated), and of libfabric before 2.5 (all but other).
unfit_emulated=(
    '^((grants|keys|revokes|refusals)\.|weft_hpp\.counters_atomics_and_fences_work$)|grants are not supported where libfabric emulates writes'
    '^large\.many_pages_of_many_layers_move$|each of so many pages is a message of its own there'
    '^ranges\.many_ranges|over its protocol a pass takes 0.1 s, and 65,536 registrations some 10 s'
    '^passes\.|over its protocol a pass takes 0.1 s, whatever the peer does'
    '^fill\.(port_loses_its_link|a_nic_is_reset)$|a NIC is not reset where libfabric emulates writes, and the peer ends with it'
    '^peers\.killed_peer$|libfabric does not give back what it emulates towards a process that died (docs/efa.md)'
)
unfit_before_25=(
    '^steady\.idle_workers_use_no_processor$|libfabric before 2.3 has nothing to sleep on over an EFA'
    '^(errors\.protected_pages_are_refused|weft_hpp\.allocations_move_and_serve_transfers)$|libfabric before 2.5 registers all memory as writable'
)
why_not() { # name; the reason, or nothing
    local each all=("${unfit[@]}")
    [[ ! $system =~ ^(117|21-emulated)$ ]] || all+=("${unfit_emulated[@]}")
    [ "$system" = other ] || all+=("${unfit_before_25[@]}")
    for each in "${all[@]}"; do [[ ! $1 =~ ${each%|*} ]] || { echo "${each##*|}"; return; }; done
}
# Of a choice: what differs most over this provider from what the simulated NICs do.
choice='^(deaths\..*|fill\.(nics_2|nics_32|pieces_in_any_order)|others\..*|old_kernel\..*|counters\.(pages|counter_rises_once_per_transfer)|transfers\.pages'
choice+='|fences\.nothing_lands_after_a_fence|peers\.(killed_peer|repeated_connects_and_disconnects_work)|secret\.denial_reaches_both.*'
choice+='|keys\.others_that_are_late_follow|revokes\.revokes_of_every_kind|errors\.protected_pages_are_refused'
choice+='|messages\.messages_of_all_sizes_arrive|atomics\.atomics_return_the_previous_value|lifecycle\.calls_in_a_forked.*)$'

# Pages from one process to another: a name, NICs, faults (with commas; "SECONDS: FAULT" once pages are on their way), options
# of both sides; of the decode side.
fills=(
    "nics_1|1|||--pages 200 --page-size 64K"
    "nics_2|2|||--pages 200 --page-size 64K --layers 4"
    "nics_4|4||--workers 2|--pages 400 --page-size 64K"
    "nics_32|32|||--pages 600 --page-size 64K"
    "manual_progress|2||--manual|--pages 100 --page-size 64K"
    "small_pages|2|||--pages 400 --page-size 4K"
    "odd_pages|2|||--pages 100 --page-size 40000 --page-stride 41000 --page-offset 77"
    "pieces_in_any_order|2|nic all pieces on,nic all reorder 500||--pages 100 --page-size 1M"
    "one_slow_nic|2|nic 1 rate 2000,nic 1 delay 300||--pages 200 --page-size 64K"
    "messages_are_not_ready|2|nic all not-ready 1||--pages 100 --page-size 64K"
    "port_loses_its_link|4|nic all rate 200,1: cable 1 all cut,1: nic 1 event port-down,3: cable 1 all whole,3: nic 1 event port-up|--timeout 60|--pages 400 --page-size 1M"
    "a_nic_is_reset|4|nic all rate 200,1: nic 1 reset|--timeout 60|--pages 400 --page-size 1M"
    "a_nic_hangs|2|nic 1 hang 0.7||--pages 100 --page-size 64K"
)

# Lines of: NAME WORDS...
plan() { # folder of the programs
    local each program test where words
    if [ -n "${STAGED:-}" ]; then
        for program in device disks durable file_memory; do
            while read -r test where words; do
                [[ ,$where, != *,efa,* ]] || echo "$program.$test one $program $test"
            done < <(LD_LIBRARY_PATH=$out "$out/$program" --list 2>/dev/null)
        done
        return
    fi
    for each in "${others[@]}"; do echo "others.$each others $each"; done
    echo "beside.mooncake beside_mooncake"
    echo "deaths.nics_die_at_every_step deaths ${short:+4}"
    echo "old_kernel.calls_in_a_forked_child_are_refused old_kernel lifecycle calls_in_a_forked_child_are_refused"
    for each in "${fills[@]}"; do echo "fill.${each%%|*} fill $each"; done
    for program in $(programs); do
        while read -r test where words; do
            [[ " $words " != *" checks "* ]] || continue
            case ,$where, in
            ,any, | *,sim:like=efa,* | *,sim:like=efa-direct,* | *,tcp,*host,* | *,host,*tcp,*) echo "$program.$test one $program $test" ;;
            esac
        done < <(LD_LIBRARY_PATH=$out "$out/$program" --list 2>/dev/null)
    done
}

programs() { make -s -f ffi-tests/Makefile OUT="$out" list; }

# ---- One test ----

# Each test has NICs of its own, in a folder $nics that nothing else uses.
with_nics() { # how many, command...
    local count=$1 status=0 nics
    shift
    nics=$(mktemp -d "$out/nics.XXXXXX")
    tools/efa/efa.sh start "$nics" "$count" --kind "$device" || return 1
    "$@" || status=$?
    tools/efa/efa.sh stop "$nics"
    tail -n 5 "$nics/log"
    rm -rf "$nics"
    return $status
}

# Runs a command on $system, whose devices' folder is $nics.
on_system() {
    env ${EFA_ROOT:+EFA_ROOT="$EFA_ROOT"} EFA_FOLDERS="$root $libdir" tools/efa/efa.sh run "$nics" \
        env -C "$root" WEFT_EFA_EMULATED=1 WEFT_TEST_FABRIC=efa WEFT_TEST_LIBRARY="$out/libweft.so.0" LD_LIBRARY_PATH="$out" "$@"
}

# On a kernel before 5.12, where libfabric ends a process that forks, unless it was told before.
old_kernel() { EFA_EMULATOR_FORK=0 one "$@"; }
one() { with_nics 2 one_here "$@"; } # program, test
one_here() {
    on_system env timeout -k 5 $((150 * WEFT_TEST_PATIENCE)) "$out/$1" "$2"
}

# NICs of one host of five die, each of four NICs.
deaths() { # how often, seed
    [[ $system =~ ^(21|other)$ ]] || { echo "SKIPPED: a NIC is reset by closing its endpoint over efa-direct alone"; return 77; }
    with_nics 20 on_system env WEFT_TEST_PATIENCE=4 WEFT_DEATHS="${1:-12}" WEFT_SEED="${2:-1}" \
        timeout -k 5 $((120 + 20 * ${1:-12})) "$out/deaths" nics_die_at_every_step
}

fill() { # "NAME|NICS|FAULTS|OPTIONS|OPTIONS OF THE DECODE SIDE"
    local name count rest
    IFS='|' read -r name count rest <<<"$1"
    with_nics "$count" fill_here "$name" "$count" "$rest"
}
fill_here() { # name, NICs, "FAULTS|OPTIONS|OPTIONS OF THE DECODE SIDE"
    local name=$1 count=$2 faults both decode fault faulty status=0 logs rails
    local -x WEFT_LOG=info
    IFS='|' read -r faults both decode <<<"$3"
    logs=$(mktemp -d)
    IFS=, read -ra faults <<<"$faults"
    for fault in "${faults[@]}"; do
        # shellcheck disable=SC2086 # words
        [[ $fault == *:* ]] || tools/efa/efa.sh tell "$nics" $fault || status=1
    done
    later "$logs/$name.prefill.err" "${faults[@]}" &
    faulty=$!
    prefill_in=(on_side) decode_in=(on_side)
    guard=()
    run_pair "$name" 127.0.0.1 "--fabric efa $both" "$decode" || status=1
    kill $faulty 2>/dev/null
    tools/efa/efa.sh tell "$nics" counts
    cat "$logs/$name".*.err "$logs/$name".*.out
    # Both have verified, over as many NICs as there are; of many, those that a busy machine brings up later are missing.
    grep -q '^decode: verified: ' "$logs/$name.decode.out" || status=1
    rails=$(sed -n 's/^decode: verified: .* \([0-9]*\) rails\? .*/\1/p' "$logs/$name.decode.out")
    [ "${rails:-0}" -ge $((count > 4 ? count * 3 / 4 : count)) ] || status=1
    [ "$name" != a_nic_is_reset ] || grep -q "No such device; its other lanes (3) carry on" "$logs/$name.prefill.err" || status=1
    [ "$name" != port_loses_its_link ] || kernel_was_heard "$logs/$name.prefill.err" || status=1
    rm -rf "$logs"
    return $status
}
later() { # log of the prefill side, faults...
    local fault begin tries
    for ((tries = 0; tries < 1200; tries++)); do
        ! grep -qs "waiting for the request" "$1" || break
        sleep 0.1
    done
    begin=$(date +%s%3N)
    shift
    for fault in "$@"; do
        [[ $fault == *:* ]] || continue
        while [ $(($(date +%s%3N) - begin)) -lt "${fault%%:*}000" ]; do sleep 0.05; done
        # shellcheck disable=SC2086 # words
        tools/efa/efa.sh tell "$nics" ${fault#*:}
    done
}
# The rail was left by the kernel's word, and came back by it.
kernel_was_heard() { # log
    grep -q "its link is down" "$1" && grep -q "Network is down; its other lanes (3) carry on" "$1" &&
        grep -q "its link is up again" "$1" && grep -q "the lane from rail . .* is up again" "$1"
}
on_side() { on_system timeout -k 5 $((60 * WEFT_TEST_PATIENCE)) "$@"; }

# Programs of others, which were made for real devices.
others=(fi_info fi_pingpong efa_bindings mooncake)
others() { with_nics 2 "other_$1"; } # name
other_fi_info() { on_system fi_info -p efa -t FI_EP_RDM | tee >(cat >&2) | grep -q 'domain: rdmap'; }
other_fi_pingpong() {
    local port=$((20000 + RANDOM % 10000)) serving status=0
    on_system timeout 100 fi_pingpong -p efa -e rdm -c -I 20 -B $port &
    serving=$!
    sleep 2
    on_system timeout 100 fi_pingpong -p efa -e rdm -c -I 20 -P $port 127.0.0.1 || status=1
    wait $serving || status=1
    return $status
}
# Python's index has these; the root of Debian 13 has its Python.
other_efa_bindings() {
    python_packages || return 77
    on_system timeout 200 python3 tools/efa/programs/bindings.py
}
other_mooncake() {
    [ "$system" = 21 ] || { echo "SKIPPED: it needs a libfabric as Debian 13 has, and writes"; return 77; }
    python_packages || return 77
    on_system timeout 200 python3 tools/efa/programs/pair.py mooncake
}
# The same pages by Weft and by Mooncake, in turns: the median of what Weft reached as a share of Mooncake's.
beside_mooncake() {
    [ "$system" = 21 ] || { echo "SKIPPED: Mooncake needs a libfabric as Debian 13 has, and writes"; return 77; }
    python_packages || return 77
    with_nics 2 both_engines
}
both_engines() {
    local turn
    for turn in 1 2 3 4 5; do
        echo "weft $(rate_of weft) mooncake $(rate_of mooncake)" | tee >(cat >&2)
    done | sort | awk '{ share[NR] = $4 > 0 ? $2 / $4 : 0 } END {
        for (i = 1; i <= NR; i++) for (k = i + 1; k <= NR; k++) if (share[k] < share[i]) { t = share[i]; share[i] = share[k]; share[k] = t }
        printf "%.2f\n", share[int((NR + 1) / 2)] }' >"$root/target/figures/efa_over_mooncake_64k"
    cat "$root/target/figures/efa_over_mooncake_64k"
    [ "$(cat "$root/target/figures/efa_over_mooncake_64k")" != 0.00 ]
}
rate_of() { # weft or mooncake: in Gbps
    WEFT_LIBRARY=$out/libweft.so.0 on_system timeout 200 python3 tools/efa/programs/pair.py "$1" 1000 | sed -n 's/^verified: .* \([0-9.]*\) Gbps$/\1/p'
}
python_packages() {
    local into=$root/target/efa/python
    export PYTHONPATH=$root/python/src:$into PYTHONDONTWRITEBYTECODE=1
    [ -d "$into/mooncake" ] || {
        flock "$out" python3 -m pip install -q --no-deps --target "$into" --python-version 3.13 --only-binary=:all: \
            efa mooncake-transfer-engine-efa-non-cuda && [ -d "$into/mooncake" ]
    } || { echo "SKIPPED: the index of Python packages does not give them"; return 1; }
}

# ---- One system ----

# The root of a Debian, but for the host's own.
root_of() { # system
    case $1 in
    117) make_root debian12-efa bookworm "$packages" && echo "$roots/debian12-efa" ;;
    21*) make_root debian13-efa trixie "$packages" && echo "$roots/debian13-efa" ;;
    esac
}
# libcurl is Mooncake's.
packages=libfabric1,libfabric-bin,ibverbs-providers,libstdc++6,python3,libcurl4t64
libfabric_here() { dpkg-query -W -f '${Version}' libfabric1 2>/dev/null | cut -d- -f1; }

unfit() { # reason
    echo "SKIPPED: $*"
    return 77
}

judge() { # name, words of the plan...
    local name=$1 log=$out/logs/$system.$1.log begin=$SECONDS status=0
    shift
    # shellcheck disable=SC2294 # words
    "$@" >"$log" 2>&1 </dev/null || status=$?
    case $status in
    0) echo "$system.$name: ok, $((SECONDS - begin)) s" && echo passed >"$log.result" ;;
    77) echo "$system.$name: skipped: $(sed -n 's/^SKIPPED: //p' "$log" | head -n 1)" && echo skipped >"$log.result" ;;
    *)
        echo failed >"$log.result"
        printf '%s\n%s\n' "$system.$name: FAILED: status $status, $((SECONDS - begin)) s" "$(tail -n 30 "$log" | cut -c 1-300 | sed 's/^/    | /')" ;;
    esac
}

# Sets EFA_ROOT and the device for $system; or EFA_ROOT to why it cannot be.
choose_system() {
    export EFA_ROOT=''
    device=p5
    [ "$system" != 21-emulated ] || device=p4d
    [ "$system" != other ] || return 0
    unset WEFT_LIBFABRIC
    [ "$system" != 117 ] || [ "$(libfabric_here)" != 1.17.0 ] || return 0
    may_chroot || { EFA_ROOT="only root can run tests in another folder"; return 1; }
    EFA_ROOT=$(root_of "$system") || return
    # A program needs the glibc of the system that it was built on, or a newer one.
    in_root "$(basename "$EFA_ROOT")" "$root $libdir" env LD_LIBRARY_PATH="$out" "$out/engine" --list >/dev/null 2>&1 ||
        { EFA_ROOT="programs that are built here do not run in $(basename "$EFA_ROOT")"; return 1; }
}

on() { # system
    local name words reason device
    system=$1
    choose_system || { echo "$1: skipped: $EFA_ROOT" && echo skipped >"$out/logs/$1.log.result"; return; }
    while read -r name words; do
        [[ "$1.$name" == *"$filter"* ]] || continue
        [ -z "$short" ] || [[ $name =~ $choice ]] || continue
        words=$(reason=$(why_not "$name") && [ -n "$reason" ] && echo "unfit $reason" || echo "$words")
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
        # shellcheck disable=SC2086 # words
        case $words in
        fill\ *) judge "$name" fill "${words#fill }" & ;;
        *) judge "$name" $words & ;;
        esac
    done <"$out/plan"
    wait
}

count() { cat /dev/null "$out/logs/$2"*.result 2>/dev/null | grep -c "^$1\$"; }

figures() {
    local folder=$root/target/figures
    if [ -n "${STAGED:-}" ]; then
        count passed 21. >"$folder/efa_bounce_tests_passed"
        count failed 21. >"$folder/efa_bounce_tests_failed"
        return
    fi
    echo "$(count passed 117.)" >"$folder/efa_tests_passed_117"
    echo "$(count passed 21)" >"$folder/efa_tests_passed_21"
    count failed '' >"$folder/efa_tests_failed"
    count passed 21.others >"$folder/efa_foreign_clients"
}

tests() { # libdir, random_fill, filter
    local each systems=(117 21 21-emulated ${WEFT_LIBFABRIC:+other})
    libdir=$(realpath "$1") fill=$(realpath "$2") filter=${3:-} jobs=${WEFT_TEST_JOBS:-2}
    export WEFT_TEST_PATIENCE=${WEFT_TEST_PATIENCE:-2} WEFT_TEST_SHAPES=${WEFT_TEST_SHAPES:-8}
    # shellcheck source=tools/pair.sh
    . tools/pair.sh
    make -s -f tools/efa/Makefile || exit 1
    mkdir -p "$out" target/figures
    rm -rf "$out/logs"
    mkdir -p "$out/logs"
    ln -sf "$libdir/libweft.so" "$out/libweft.so.0"
    # shellcheck disable=SC2046 # names
    make -s -j2 -f ffi-tests/Makefile OUT="$out" $(programs) || exit 1
    target/efa/efa-model-test >"$out/logs/model.log" 2>&1
    [ $? = 0 ] && echo "model: ok, $(wc -l <"$out/logs/model.log") tests" && echo passed >"$out/logs/model.log.result" ||
        { echo failed >"$out/logs/model.log.result"; cat "$out/logs/model.log"; }
    plan >"$out/plan"
    [ -z "${STAGED:-}" ] || systems=(21)
    for each in "${systems[@]}"; do
        (on "$each")
    done
    figures
    echo "$(count passed '') passed, $(count failed '') failed, $(count skipped '') skipped"
    [ "$(count failed '')" = 0 ] && [ "$(count passed '')" -gt 0 ]
}

# ---- Chaos: three hosts of four NICs each, and what can fail does ----

# A host's cable; the tests that know tools/lab.sh's hosts call it.
link() { # host (0: left), rail, up or down
    local state=whole
    [ "$3" = up ] || state=cut
    target/efa/efa-emulator --tell "$EFA_EMULATOR" cable $((4 * $1 + $2)) all $state
}

# Beside what the engine does to cables and processes: NICs that are slow, hang, reorder, or take no messages.
weather() {
    local faults
    IFS=, read -ra faults <<<"${WEFT_EFA_WEATHER-rate 300,delay 3000,reorder 2000,pieces on,not-ready 0.4,hang 0.8,whole,whole}"
    [ ${#faults[@]} -gt 0 ] || return 0
    RANDOM=$1
    while sleep 0.7; do
        # shellcheck disable=SC2086 # words
        target/efa/efa-emulator --tell "$nics" nic $((RANDOM % 12)) ${faults[RANDOM % ${#faults[@]}]} || return
    done
}

rails_of() { # host
    local i names=()
    for ((i = 0; i < 4; i++)); do names+=("rdmap$((79 + 4 * $1 + i))s0-rdm"); done
    (IFS=,; echo "${names[*]}")
}

three_hosts() { # minutes, seed
    local nics=$out/nics.$system.chaos status=0 weather
    tools/efa/efa.sh start "$nics" 12 --kind "$device" --seed "${2:-1}" || return 1
    weather "${2:-1}" &
    weather=$!
    on_system env WEFT_LAB_LINKS="$root/tools/test-efa.sh" WEFT_LAB_LEFT="$(rails_of 0)" WEFT_LAB_RIGHT="$(rails_of 1)" \
        WEFT_LAB_THIRD="$(rails_of 2)" WEFT_CHAOS_PACE="${WEFT_CHAOS_PACE:-2}" \
        WEFT_CHAOS_ONLY="${WEFT_CHAOS_ONLY:-down flap cut kill stop restart disconnect}" \
        "$out/engine" namespaces "$1" "$2" "$out/chaos.json" || status=$?
    kill $weather 2>/dev/null
    wait $weather 2>/dev/null
    tools/efa/efa.sh tell "$nics" counts
    tools/efa/efa.sh stop "$nics"
    return $status
}

# What runs alone, over one system.
prepare() { # libdir, programs
    libdir=$(realpath "$1")
    system=${WEFT_EFA_SYSTEM:-21} EFA_ROOT=''
    export WEFT_TEST_PATIENCE=${WEFT_TEST_PATIENCE:-2} EFA_ROOT
    make -s -f tools/efa/Makefile || exit 1
    mkdir -p "$out" target/figures
    ln -sf "$libdir/libweft.so" "$out/libweft.so.0"
    make -s -j2 -f ffi-tests/Makefile OUT="$out" "${@:2}" || exit 1
    choose_system || { echo "$system: $EFA_ROOT"; exit 1; }
}

# The deaths alone, for the figures.
die() { # libdir, count, seed
    local device status=0
    prepare "$1" deaths engine
    deaths "$2" "${3:-1}" >"$out/deaths.out" || status=$?
    cat "$out/deaths.out"
    sed -n 's/^\(efa_failover_[a-z_]*\) \([0-9]*\)$/\1 \2/p' "$out/deaths.out" |
        while read -r name value; do echo "$value" >"target/figures/$name"; done
    return $status
}

chaos() { # libdir, minutes, seed
    local status=0 device=p5
    prepare "$1" engine
    three_hosts "$2" "${3:-1}" || status=$?
    sed -nE 's/^  "(operations|faults|.*_completions|late|wrong_bytes|ghost_writes|.*_notifications|revoked_counts|needless_errors|oddities)": ([0-9]+),$/efa_chaos_\1 \2/p' \
        "$out/chaos.json" | while read -r name value; do echo "$value" | tee "target/figures/$name" | sed "s/^/$name /"; done
    return $status
}

case ${1:-} in
--link) link "$2" "$3" "$4"; exit ;;
--chaos) shift; chaos "$@"; exit ;;
--deaths) shift; die "$@"; exit ;;
--root) may_chroot && root_of "$2"; exit ;;
esac
[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
tests "$@"
