#!/usr/bin/env bash
# Weft over libfabric's verbs, on soft-RoCE devices (Linux's rdma_rxe) in a virtual machine (tools/vm.sh): random_fill
# between two ends of RoCE cables, and the C tests that any network fabric passes. One line a test, with how many there
# are; a last line that counts them. What passed is not run again until the library or the program changes.
#     tools/test-verbs.sh LIBDIR RANDOM_FILL [FILTER]     FILTER: a part of the tests' names
# By hand: tools/vm.sh bash -c 'tools/test-verbs.sh --cables 2; ibv_devices; COMMAND'
# SHORT=1: a choice that takes a few minutes. AGAIN=1: also what has passed already.
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

# Programs about a fabric's names, or what only root's other tools can do.
not_here='^(log|statistics|end_to_end|weft_hpp)\.'
# Of a choice: what differs most over verbs from what the simulated NICs do.
short='^(fill\.(small_pages|layers|four_rails|a_cable_is_cut)|settings\..*|counters\.(pages|counter_rises_once_per_transfer)'
short+='|killed\.writer_killed_inside_a_counted_page|fences\.nothing_lands_after_a_fence|peers\.(killed_peer|restarted_endpoint_is_a_new_peer)'
short+='|messages\.messages_of_all_sizes_arrive|transfers\.(pages|cancel_takes_effect_at_once)|atomics\.atomics_return_the_previous_value)$'

# What is built: all but what needs CUDA or hosts of its own.
programs() { make -s -f "$root/ffi-tests/Makefile" OUT="$1" list | grep -vE '^(lab|gpu)_'; }

key() { cat "$@" | sha256sum | cut -c 1-16; }

# Lines of: KEY NAME WORDS...
plan() { # libdir, random_fill, folder of the programs
    local of each program test where alone
    of=$(key "$1/libweft.so" "$2")
    for each in "${fills[@]}"; do
        echo "$of fill.${each%%|*} fill $each"
    done
    for program in $(programs "$3"); do
        of=$(key "$1/libweft.so" "$3/$program")
        while read -r test where alone; do
            case ,$where, in
            ,any, | *,verbs,* | *,tcp,*host,* | *,host,*tcp,*) echo "$of $program.$test one $program $test" ;;
            esac
        done < <(LD_LIBRARY_PATH=$3 "$3/$program" --list 2>/dev/null)
    done
}

outside() {
    local libdir fill filter=${3:-} out=$root/target/test-verbs kept=$root/target/vm/share/passed before=0 left=()
    libdir=$(realpath "$1") fill=$(realpath "$2")
    "$root/tools/vm.sh" make || exit 1
    mkdir -p "$out"
    ln -sf "$libdir/libweft.so" "$out/libweft.so.0"
    # shellcheck disable=SC2046 # names
    make -s -j2 -f "$root/ffi-tests/Makefile" OUT="$out" $(programs "$out") || exit 1
    touch "$kept"
    while read -r of name words; do
        [[ $name == *"$filter"* && ! $name =~ $not_here ]] || continue
        [ -z "${SHORT:-}" ] || [[ $name =~ $short ]] || continue
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
    LD_LIBRARY_PATH=$out VM_LIMIT=${VM_LIMIT:-14400} \
        "$root/tools/vm.sh" tools/test-verbs.sh --inside "$fill" "$out" $before
}

# ---- Inside: cables, and the tests one after the other ----

# cables N: N cables with an RDMA device at both ends, left0 and right0 and so on, which packets really cross although all
# are in one network namespace (rxe of 6.1 knows no other): local addresses are looked up last. left: 10.8.I.1; right:
# 10.8.I.2.
cables() {
    local i side link
    modprobe -a ib_uverbs rdma_cm rdma_ucm rdma_rxe veth || return 1
    ip rule add pref 100 lookup local
    sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.all.accept_local=1
    for ((i = 0; i < $1; i++)); do
        ip link add "cl$i" mtu 9000 type veth peer name "cr$i" mtu 9000
        ip addr add "10.8.$i.1/32" dev "cl$i"
        ip addr add "10.8.$i.2/32" dev "cr$i"
        for link in "cl$i" "cr$i"; do
            sysctl -qw "net.ipv4.conf.$link.rp_filter=0"
            ip link set "$link" up
            ip rule add pref 10 iif "$link" lookup local
        done
        ip rule add pref 50 from "10.8.$i.1" to "10.8.$i.2" lookup $((1000 + 2 * i))
        ip rule add pref 50 from "10.8.$i.2" to "10.8.$i.1" lookup $((1001 + 2 * i))
        ways "$i"
    done
    ip rule del pref 0
    for ((i = 0; i < $1; i++)); do
        rdma link add "left$i" type rxe netdev "cl$i" && rdma link add "right$i" type rxe netdev "cr$i" || return 1
    done
}

# What a cable forgets when it is cut.
ways() {
    ip neigh replace "10.8.$1.2" lladdr "$(cat "/sys/class/net/cr$1/address")" dev "cl$1" nud permanent
    ip neigh replace "10.8.$1.1" lladdr "$(cat "/sys/class/net/cl$1/address")" dev "cr$1" nud permanent
    ip route replace "10.8.$1.2" dev "cl$1" src "10.8.$1.1" table $((1000 + 2 * $1))
    ip route replace "10.8.$1.1" dev "cr$1" src "10.8.$1.2" table $((1001 + 2 * $1))
}

# The second cable, once pages are on their way; it is whole again when 5 s have passed.
cut_cable() { # log of the prefill side
    local tries
    for ((tries = 0; tries < 1200; tries++)); do
        grep -q "waiting for the request" "$1" 2>/dev/null && break
        sleep 0.1
    done
    sleep 1.5
    ip link set cl1 down
    sleep 5
    ip link set cl1 up
    ways 1
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
    run_pair "$name" 127.0.0.1 "--fabric verbs --timeout 200 $both" "$decode"
    local status=$?
    [ -z "$cutter" ] || wait $cutter
    cat "$logs/$name".*.err "$logs/$name".*.out
    return $status
}

one() { # program, test
    WEFT_TEST_FABRIC=verbs WEFT_RAILS=${WEFT_RAILS-left0,left1} WEFT_TEST_LIBRARY=$programs/libweft.so.0 \
        timeout -k 5 $((60 * WEFT_TEST_PATIENCE)) "$programs/$1" "$2"
}

inside() { # random_fill, folder of the programs, how many have passed before
    local fill=$1 programs=$2 passed=$3 failed=0 skipped=0 logs=/run/logs guard=(timeout --foreground -k 5 240)
    local plan at=0 of name words log=/run/logs/log begin status took
    export WEFT_TEST_PATIENCE=${WEFT_TEST_PATIENCE:-4}
    mkdir -p $logs
    # shellcheck source=tools/pair.sh
    . "$root/tools/pair.sh"
    cables 4 || { echo "the machine has no RDMA devices"; exit 1; }
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
        case $status in
        0) passed=$((passed + 1)); echo "[$at/${#plan[@]}] $name: ok, $took"; echo "$of $name" >>$share/passed ;;
        77) skipped=$((skipped + 1)); echo "[$at/${#plan[@]}] $name: skipped: $(sed -n 's/^SKIPPED: //p' $log | head -n 1)" ;;
        *)
            failed=$((failed + 1))
            printf '%s\n%s\n' "[$at/${#plan[@]}] $name: FAILED: status $status, $took" \
                "$(tail -n 40 $log | cut -c 1-300 | sed 's/^/    | /')" ;;
        esac
    done
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ] && [ $passed -gt 0 ]
}

case ${1:-} in
--inside)
    shift
    inside "$@" ;;
--cables) cables "${2:-2}" ;;
*)
    [ $# -ge 2 ] || { echo "usage: tools/test-verbs.sh LIBDIR RANDOM_FILL [FILTER]" >&2; exit 2; }
    outside "$@" ;;
esac
