#!/usr/bin/env bash
# Weft over libfabric's verbs, on soft-RoCE devices (Linux's rdma_rxe) in a virtual machine (tools/vm.sh): random_fill
# between two ends of RoCE cables, and the C tests that any network fabric passes. One line a test, with how many there
# are; a last line that counts them. What passed is not run again until the library or the program changes.
#     tools/test-verbs.sh LIBDIR RANDOM_FILL [FILTER]     FILTER: a part of the tests' names
#     tools/test-verbs.sh --chaos LIBDIR MINUTES [SEED]   three hosts, whose links and processes fail: a ledger at the end
# By hand: tools/vm.sh bash -c 'tools/test-verbs.sh --cables 2; ibv_devices; COMMAND'
# SHORT=1: a choice that takes a few minutes. AGAIN=1: also what has passed already. VM_RELEASE=trixie: over libfabric of
# that release of Debian, a choice unless there is a filter.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
share=/run/share # in the machine; outside $root/target/vm/share

# ---- Outside: what to run ----

# Pages from the left ends of cables to the right ends: a name, cables, options of both sides; of the decode side.
fills=(
    "small_pages|1||--pages 400 --page-size 4K"
    "pages|1||--pages 200 --page-size 64K"
    "layers|2||--pages 60 --page-size 64K --layers 4"
    "large_pages|2||--pages 24 --page-size 1M"
    "odd_pages|2||--pages 100 --page-size 40000 --page-stride 41000 --page-offset 77"
    "adjacent_pages|1||--pages 300 --page-size 16K --adjacent"
    "four_rails|4|--workers 2|--pages 200 --page-size 64K"
    "manual_progress|4|--manual|--pages 200 --page-size 64K"
    "a_cable_is_cut|2||--pages 60 --page-size 1M"
)

# Programs about a fabric's names, simulated devices, sockets, or what only root's other tools can do; more than 4 GiB take
# an emulated machine too long. A dead process's connections stay open while children that it has forked live. NICs write
# into the memory of a process that is stopped, too.
not_here='^(log|statistics|end_to_end|weft_hpp|device|watches|unauthenticated)\.|_4_gib'
not_here+='|^network\.dead_peer_is_lost_although_its_children_live$'
not_here+='|^transfers\.(stopped_peer_delays_no_completion|paused_peer_(of_one_rail_)?stays_connected)$'
# Of a choice: what differs most over verbs from what the simulated NICs do.
short='^(fill\.(small_pages|layers|four_rails|a_cable_is_cut)|settings\..*|counters\.(pages|counter_rises_once_per_transfer)'
short+='|killed\.writer_killed_inside_a_counted_page|fences\.nothing_lands_after_a_fence|peers\.(killed_peer|restarted_endpoint_is_a_new_peer)'
short+='|messages\.messages_of_all_sizes_arrive|transfers\.(pages|cancel_takes_effect_at_once)|atomics\.atomics_return_the_previous_value)$'

# What is built: all but what needs CUDA or hosts of its own.
# Those with tests that take long come last.
programs() { # folder
    local long='transfers|peers|lists|waiting|liveness|engine|fallback|large' all of
    all=$(make -s -f "$root/ffi-tests/Makefile" OUT="$1" list | grep -vE '^(lab|gpu)_')
    [ -z "$choice" ] || all=$(while read -r of; do [[ $short != *"$of\\."* ]] || echo "$of"; done <<<"$all")
    grep -vxE "$long" <<<"$all"
    for of in ${long//|/ }; do grep -xF "$of" <<<"$all"; done
}

key() { cat "$@" - <<<"${VM_RELEASE:-}" | sha256sum | cut -c 1-16; }

# Lines of: KEY NAME WORDS...
plan() { # libdir, random_fill, folder of the programs
    local of each program test where words
    of=$(key "$1/libweft.so" "$2")
    for each in "${fills[@]}"; do
        echo "$of fill.${each%%|*} fill $each"
    done
    for program in $(programs "$3"); do
        of=$(key "$1/libweft.so" "$3/$program")
        while read -r test where words; do
            [[ " $words " != *" checks "* ]] || continue
            case ,$where, in
            ,any, | *,verbs,* | *,tcp,*host,* | *,host,*tcp,*) echo "$of $program.$test one $program $test" ;;
            esac
        done < <(LD_LIBRARY_PATH=$3 "$3/$program" --list 2>/dev/null)
    done
}

# A short run is skipped where there can be no machine.
make_machine() {
    local status=0
    "$root/tools/vm.sh" make || status=$?
    [ $status != 77 ] || [ -z "${SHORT:-}" ] || { echo "SKIPPED: no virtual machine can be made here"; exit 0; }
    [ $status = 0 ] || exit 1
}

outside() {
    local libdir fill filter=${3:-} choice='' out=$root/target/test-verbs kept=$root/target/vm/share/passed before=0 left=()
    libdir=$(realpath "$1") fill=$(realpath "$2")
    make_machine
    [ -z "${VM_RELEASE:-}" ] || [ -n "$filter" ] || choice="$short|^(fill|counters)\\."
    [ -z "${SHORT:-}" ] || choice=$short
    mkdir -p "$out"
    ln -sf "$libdir/libweft.so" "$out/libweft.so.0"
    # shellcheck disable=SC2046 # names
    make -s -j2 -f "$root/ffi-tests/Makefile" OUT="$out" $(programs "$out") || exit 1
    touch "$kept"
    while read -r of name words; do
        [[ $name == *"$filter"* && ! $name =~ $not_here ]] || continue
        [ -z "$choice" ] || [[ $name =~ $choice ]] || continue
        if [ -z "${AGAIN:-}" ] && grep -qxF "$of $name" "$kept"; then
            before=$((before + 1))
        else
            left+=("$of $name $words")
        fi
    done < <(plan "$libdir" "$fill" "$out")
    [ $before = 0 ] || echo "$before tests have passed with this library already (AGAIN=1 runs them again)"
    if [ ${#left[@]} = 0 ]; then
        echo "$before passed, 0 failed, 0 skipped"
        [ $before -gt 0 ]
        return
    fi
    printf '%s\n' "${left[@]}" >"$root/target/vm/share/plan"
    in_machine --inside "$fill" "$out" $before
}

chaos() { # libdir, minutes, seed
    local out=$root/target/test-verbs
    make_machine
    mkdir -p "$out"
    ln -sf "$(realpath "$1")/libweft.so" "$out/libweft.so.0"
    make -s -j2 -f "$root/ffi-tests/Makefile" OUT="$out" engine || exit 1
    in_machine --chaos-inside "$out" "$2" "${3:-}"
}

# Runs a part of this script in the machine, and keeps the figures that it leaves.
in_machine() {
    local status=0 name value figures=$root/target/vm/share/figures
    rm -f "$figures"
    LD_LIBRARY_PATH=$root/target/test-verbs VM_LIMIT=${VM_LIMIT:-14400} "$root/tools/vm.sh" tools/test-verbs.sh "$@" || status=$?
    [ -e "$figures" ] || return 1
    mkdir -p "$root/target/figures"
    while read -r name value; do
        echo "$value" >"$root/target/figures/$name"
    done <"$figures"
    return $status
}

# ---- Inside: hosts and their links, and the tests one after the other ----

hosts=('' left right third)

# network HOSTS RAILS: left0, left1 and so on are RDMA devices of one host, right0 of the next, third0 of a third. All are
# in one network namespace (rxe of 6.1 knows no other), but packets really cross, over a cable or a switch of each rail:
# local addresses are looked up last. Addresses: 10.8.RAIL.HOST; links: h1r0 is the left host's first.
network() {
    local rail a b
    modprobe -a ib_uverbs rdma_cm rdma_ucm rdma_rxe veth || return 1
    ip rule add pref 100 lookup local
    sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.all.accept_local=1
    for ((rail = 0; rail < $2; rail++)); do
        if [ "$1" = 2 ]; then
            ip link add "h1r$rail" mtu 9000 type veth peer name "h2r$rail" mtu 9000
        else
            modprobe bridge && ip link add "s$rail" mtu 9000 type bridge && ip link set "s$rail" up || return 1
        fi
        for ((a = 1; a <= $1; a++)); do
            [ "$1" = 2 ] || ip link add "h${a}r$rail" mtu 9000 type veth peer name "s${a}r$rail" mtu 9000
            [ "$1" = 2 ] || ip link set "s${a}r$rail" master "s$rail" up
            ip addr add "10.8.$rail.$a/32" dev "h${a}r$rail"
            sysctl -qw "net.ipv4.conf.h${a}r$rail.rp_filter=0"
            ip link set "h${a}r$rail" up
            ip rule add pref 10 iif "h${a}r$rail" lookup local
            for ((b = 1; b <= $1; b++)); do
                [ $a = $b ] || ip rule add pref 50 from "10.8.$rail.$a" to "10.8.$rail.$b" lookup $((1000 + 16 * rail + 4 * a + b))
            done
        done
        for ((a = 1; a <= $1; a++)); do ways "$a" "$rail"; done
    done
    ip rule del pref 0
    for ((rail = 0; rail < $2; rail++)); do
        for ((a = 1; a <= $1; a++)); do
            rdma link add "${hosts[a]}$rail" type rxe netdev "h${a}r$rail" || return 1
        done
    done
}

# What a host's link forgets when it goes down: how the others are reached.
ways() { # host, rail
    local b link=h${1}r$2
    for b in 1 2 3; do
        [ "$b" != "$1" ] && [ -e "/sys/class/net/h${b}r$2" ] || continue
        ip neigh replace "10.8.$2.$b" lladdr "$(cat "/sys/class/net/h${b}r$2/address")" dev "$link" nud permanent
        ip route replace "10.8.$2.$b" dev "$link" src "10.8.$2.$1" table $((1000 + 16 * $2 + 4 * $1 + b))
    done
}

# Moves a host's link; the tests that know tools/lab.sh's hosts call it.
link() { # host (0: left), rail, up or down
    ip link set "h$(($1 + 1))r$2" "$3" || return 1
    [ "$3" = down ] || ways $(($1 + 1)) "$2"
}

# The second cable, once pages are on their way; it is whole again when 5 s have passed.
cut_cable() { # log of the prefill side
    local tries
    for ((tries = 0; tries < 1200; tries++)); do
        grep -q "waiting for the request" "$1" 2>/dev/null && break
        sleep 0.1
    done
    sleep 1.5
    link 0 1 down
    sleep 5
    link 0 1 up
}

fill() { # "NAME|CABLES|OPTIONS|OPTIONS OF THE DECODE SIDE"
    local name cables both decode i lefts=() rights=() cutter=
    IFS='|' read -r name cables both decode <<<"$1"
    for ((i = 0; i < cables; i++)); do
        lefts+=("left$i")
        rights+=("right$i")
    done
    prefill_in=(env "WEFT_RAILS=$(IFS=,; echo "${lefts[*]}")") decode_in=(env "WEFT_RAILS=$(IFS=,; echo "${rights[*]}")")
    if [ "$name" = a_cable_is_cut ]; then
        cut_cable "$logs/$name.prefill.err" &
        cutter=$!
    fi
    run_pair "$name" 127.0.0.1 "--fabric verbs --timeout $((50 * WEFT_TEST_PATIENCE)) $both" "$decode"
    local status=$?
    [ -z "$cutter" ] || wait $cutter
    cat "$logs/$name".*.err "$logs/$name".*.out
    return $status
}

# Limits grow with the time that this machine took to start. An emulated one takes minutes for all shapes of pages.
patience() {
    local up
    read -r up _ </proc/uptime
    export WEFT_TEST_PATIENCE=${WEFT_TEST_PATIENCE:-$((4 + ${up%.*} / 10))}
    [ "$WEFT_TEST_PATIENCE" -le 4 ] || export WEFT_TEST_SHAPES=${WEFT_TEST_SHAPES:-8}
}

one() { # program, test
    WEFT_TEST_FABRIC=verbs WEFT_RAILS=${WEFT_RAILS-left0,left1} WEFT_TEST_LIBRARY=$programs/libweft.so.0 \
        timeout -k 5 $((60 * WEFT_TEST_PATIENCE)) "$programs/$1" "$2"
}

# Three hosts of four rails, three processes, and what tools/chaos.sh does to them but for links that are slow or lossy.
chaos_inside() { # folder of the programs, minutes, seed
    local status=0
    patience
    network 3 4 || { echo "the machine has no RDMA devices"; exit 1; }
    WEFT_TEST_FABRIC=verbs WEFT_LAB_LINKS=$root/tools/test-verbs.sh \
        WEFT_LAB_LEFT='left*' WEFT_LAB_RIGHT='right*' WEFT_LAB_THIRD='third*' \
        WEFT_CHAOS_ONLY=${WEFT_CHAOS_ONLY:-down flap cut kill stop restart disconnect} \
        "$1/engine" namespaces "$2" "$3" $share/chaos.json || status=$?
    sed -nE 's/^  "(operations|faults|.*_completions|late|wrong_bytes|ghost_writes|.*_notifications|revoked_counts|needless_errors|oddities)": ([0-9]+),$/verbs_chaos_\1 \2/p' \
        $share/chaos.json | tee $share/figures
    return $status
}

inside() { # random_fill, folder of the programs, how many have passed before
    local fill=$1 programs=$2 passed=$3 failed=0 skipped=0 logs=/run/logs guard
    local plan at=0 of name words log=/run/logs/log begin status took pages=0 counted=0 to_count once
    patience
    mkdir -p $logs
    # shellcheck source=tools/pair.sh
    . "$root/tools/pair.sh"
    guard=(timeout --foreground -k 5 $((60 * WEFT_TEST_PATIENCE)))
    network 2 4 || { echo "the machine has no RDMA devices"; exit 1; }
    mapfile -t plan <$share/plan
    for line in "${plan[@]}"; do
        at=$((at + 1))
        read -r of name words <<<"$line"
        begin=$SECONDS status=0
        # shellcheck disable=SC2086 # words
        case $words in
        fill\ *) fill "${words#fill }" >$log 2>&1 </dev/null || status=$? ;;
        *) $words >$log 2>&1 </dev/null || status=$? ;;
        esac
        took="$((SECONDS - begin)) s"
        read -r to_count once <<<"$(awk '/^pages to count: / { a += $4 } /^pages counted once: / { b += $4 } END { print a + 0, b + 0 }' $log)"
        pages=$((pages + to_count)) counted=$((counted + once))
        case $status in
        0) passed=$((passed + 1)); echo "[$at/${#plan[@]}] $name: ok, $took"; echo "$of $name" >>$share/passed ;;
        77) skipped=$((skipped + 1)); echo "[$at/${#plan[@]}] $name: skipped: $(sed -n 's/^SKIPPED: //p' $log | head -n 1)" ;;
        *)
            failed=$((failed + 1))
            printf '%s\n%s\n' "[$at/${#plan[@]}] $name: FAILED: status $status, $took" \
                "$(tail -n 40 $log | cut -c 1-300 | sed 's/^/    | /')" ;;
        esac
    done
    {
        echo "verbs_tests_passed $passed"
        echo "verbs_tests_failed $failed"
        [ $pages = 0 ] || echo "verbs_write_imm_counts $(awk "BEGIN { print $counted / $pages }")"
    } >$share/figures
    [ $pages = 0 ] || echo "$counted of $pages counted pages raised their counter exactly once"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ] && [ $passed -gt 0 ]
}

case ${1:-} in
--inside)
    shift
    inside "$@" ;;
--chaos | --chaos-inside)
    part=${1#--}
    shift
    "${part/-/_}" "$@" ;;
--link) link "$2" "$3" "$4" ;;
--cables) network 2 "${2:-2}" ;;
*)
    [ $# -ge 2 ] || { echo "usage: tools/test-verbs.sh LIBDIR RANDOM_FILL [FILTER]" >&2; exit 2; }
    outside "$@" ;;
esac
