#!/usr/bin/env bash
# Weft over libfabric's verbs, on soft-RoCE devices (Linux's rdma_rxe) in a virtual machine (tools/vm.sh): random_fill and
# weft-bench between two ends of RoCE cables, and over devices of many kinds; the C tests that any network fabric passes;
# half a minute of chaos. One line a test, with how many there are; a last line that counts them. What passed is not run
# again until the library or the program changes.
#     tools/test-verbs.sh LIBDIR RANDOM_FILL WEFT_BENCH [FILTER]     FILTER: a part of the tests' names
#     tools/test-verbs.sh --chaos LIBDIR MINUTES [SEED]   three hosts, whose links and processes fail: a ledger at the end
# By hand: tools/vm.sh bash -c 'tools/test-verbs.sh --cables 2; ibv_devices; COMMAND'
# STAGED=1: the tests of memory that no NIC reaches, with a LIBDIR whose library has fake devices (tools/test-staged.sh).
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
    "a_rail_is_missing|4||--pages 200 --page-size 64K"
)
# The same by weft-bench, which verifies every byte: a name, cables, options.
loads=(
    "writes|2|--pages 64"
    "reads|2|--pages 64 --read"
    "reads_of_one_rail|1|--pages 64 --read"
    "reads_of_layers|4|--pages 64 --page 16K --layers 4 --read"
    "small_writes_beside_pages|2|--pages 64 --small 4K"
)
# Devices that pages move over, as `kind` makes them.
kinds=(mtu_1024 mtu_2048 mtu_4096 ipv6_only bonded)

# What becomes of a rail that the kernel speaks of.
speaks=(port_loses_its_link device_is_removed device_comes_back)

# Programs about a fabric's names, simulated devices, sockets, or what only root's other tools can do; more than 4 GiB take
# an emulated machine too long. A dead process's connections stay open while children that it has forked live. NICs serve
# writes and reads of a process that is stopped, too.
not_here='^(log|statistics|end_to_end|weft_hpp|device|disks|durable|file_memory|watches|unauthenticated)\.|_4_gib'
not_here+='|^network\.dead_peer_is_lost_although_its_children_live$'
not_here+='|^transfers\.(stopped_peer_delays_no_completion|paused_peer_(of_one_rail_)?stays_connected)$'
not_here+='|^transfers\.(deadlines_are_kept|late_read_changes_no_memory)$'
[ -z "${STAGED:-}" ] || not_here='^$'
# Of a choice: what differs most over verbs from what the simulated NICs do.
short='^(fill\.(small_pages|layers|four_rails|a_cable_is_cut)|load\.reads|kernel\.port_loses_its_link|kind\.(mtu_1024|ipv6_only)|settings\..*|counters\.(pages|counter_rises_once_per_transfer)'
short+='|killed\.writer_killed_inside_a_counted_page|fences\.nothing_lands_after_a_fence|peers\.(killed_peer|restarted_endpoint_is_a_new_peer)'
short+='|messages\.messages_of_all_sizes_arrive|transfers\.(pages|cancel_takes_effect_at_once)|atomics\.atomics_return_the_previous_value)$'

# Of each kind of memory that no NIC reaches.
short_staged='^(device\.(device_registrations_are_checked|grants_on_a_device_are_revoked|host_to_device|device_to_host|failed_copy_fails_its_transfer|lists_of_both_kinds)_by_frames'
short_staged+='|disks\.(failed_write_names_errno_and_entry|failed_read_ends_alone|memory_goes_on_beside_a_hung_disk|fence_waits_for_a_disk)'
short_staged+='|durable\.(notification_and_counter_follow_the_flush|failed_flush_spoils_the_memory|durable_writes_survive_the_end_of_their_owner)'
short_staged+='|file_memory\.(bytes_move_by_threads|pages_move_between_files|own_file_moves_to_and_from_memory|end_of_a_file_is_an_error_for_reads'
short_staged+='|read_past_the_end_names_errno_and_entry|writes_are_there_when_the_owner_was_killed))$'
[ -z "${STAGED:-}" ] || short=$short_staged

# What is built: all but what needs CUDA or hosts of its own.
# Those with tests that take long come last.
programs() { # folder
    local long='transfers|peers|lists|waiting|liveness|engine|fallback|large' all part
    [ -z "${STAGED:-}" ] || { printf '%s\n' device disks durable file_memory; return; }
    all=$(make -s -f "$root/ffi-tests/Makefile" OUT="$1" list | grep -vE '^(lab|gpu)_')
    [ -z "$choice" ] || all=$(while read -r part; do [[ $short != *"$part\\."* ]] || echo "$part"; done <<<"$all")
    grep -vxE "$long" <<<"$all"
    for part in ${long//|/ }; do grep -xF "$part" <<<"$all"; done
}

key() { cat "$@" - <<<"${VM_RELEASE:-}" | sha256sum | cut -c 1-16; }

# Lines of: KEY NAME WORDS...
plan() { # libdir, random_fill, folder of the programs, weft-bench
    local sum each program test where words
    if [ -n "${STAGED:-}" ]; then fills=() loads=() kinds=() speaks=(); fi
    sum=$(key "$1/libweft.so" "$2")
    for each in "${fills[@]}"; do
        echo "$sum fill.${each%%|*} fill $each"
    done
    sum=$(key "$4")
    for each in "${loads[@]}"; do
        echo "$sum load.${each%%|*} load $each"
    done
    for each in "${kinds[@]}"; do
        echo "$sum kind.$each kind $each"
    done
    for each in "${speaks[@]}"; do
        echo "$sum kernel.$each kernel $each"
    done
    for program in $(programs "$3"); do
        sum=$(key "$1/libweft.so" "$3/$program")
        while read -r test where words; do
            [[ " $words " != *" checks "* ]] || continue
            case ,$where, in
            *,verbs,*) echo "$sum $program.$test one $program $test" ;;
            ,any, | *,tcp,*host,* | *,host,*tcp,*) [ -n "${STAGED:-}" ] || echo "$sum $program.$test one $program $test" ;;
            esac
        done < <(LD_LIBRARY_PATH=$3 "$3/$program" --list 2>/dev/null)
    done
    [ -n "${STAGED:-}" ] || [ ! -e "$3/engine" ] || echo "$(key "$1/libweft.so" "$3/engine") chaos.links_and_processes_fail short_chaos"
}

# A short run is skipped where there can be no machine.
make_machine() {
    local status=0
    "$root/tools/vm.sh" make || status=$?
    [ $status != 77 ] || [ -z "${SHORT:-}" ] || { echo "SKIPPED: no virtual machine can be made here"; exit 0; }
    [ $status = 0 ] || exit 1
}

outside() {
    local libdir fill bench filter=${4:-} choice='' out=$root/target/test-verbs kept=$root/target/vm/share/passed before=0 left=()
    libdir=$(realpath "$1") fill=$(realpath "$2") bench=$(realpath "$3")
    make_machine
    [ -z "${VM_RELEASE:-}" ] || [ -n "$filter" ] || choice="$short|^(fill|counters)\\."
    [ -z "${SHORT:-}" ] || choice=$short
    mkdir -p "$out"
    ln -sf "$libdir/libweft.so" "$out/libweft.so.0"
    # shellcheck disable=SC2046 # names
    make -s -j2 -f "$root/ffi-tests/Makefile" OUT="$out" $(programs "$out") || exit 1
    touch "$kept"
    while read -r sum name words; do
        [[ $name == *"$filter"* && ! $name =~ $not_here ]] || continue
        [ -z "$choice" ] || [[ $name =~ $choice ]] || continue
        if [ -z "${AGAIN:-}" ] && grep -qxF "$sum $name" "$kept"; then
            before=$((before + 1))
        else
            left+=("$sum $name $words")
        fi
    done < <(plan "$libdir" "$fill" "$out" "$bench")
    [ $before = 0 ] || echo "$before tests have passed with this library already (AGAIN=1 runs them again)"
    if [ ${#left[@]} = 0 ]; then
        echo "$before passed, 0 failed, 0 skipped"
        [ $before -gt 0 ]
        return
    fi
    printf '%s\n' "${left[@]}" >"$root/target/vm/share/plan"
    in_machine --inside "$fill" "$bench" "$out" $before "verbs_${STAGED:+bounce_}tests"
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
# local addresses are looked up last. Addresses: 10.8.RAIL.HOST, each rail a network of its own; links: h1r0 is the left
# host's first.
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
            ip addr add "10.8.$rail.$a/24" dev "h${a}r$rail" noprefixroute
            sysctl -qw "net.ipv4.conf.h${a}r$rail.rp_filter=0"
            ip link set "h${a}r$rail" up
            ip rule add pref 10 iif "h${a}r$rail" lookup local
            for ((b = 1; b <= $1; b++)); do
                [ $a = $b ] || ip rule add pref 50 from "10.8.$rail.$a" to "10.8.$rail.$b" lookup $((1000 + 16 * rail + 4 * a + b))
            done
        done
        for ((a = 1; a <= $1; a++)); do ways "$a" "$rail" | ip -batch - || return 1; done
    done
    ip rule del pref 0
    for ((rail = 0; rail < $2; rail++)); do
        for ((a = 1; a <= $1; a++)); do
            rdma link add "${hosts[a]}$rail" type rxe netdev "h${a}r$rail" || return 1
        done
    done
}

no_network() {
    local link pref
    ip rule add pref 0 lookup local
    ip rule del pref 100
    for pref in 10 50; do
        while ip rule del pref $pref 2>/dev/null; do :; done
    done
    for link in /sys/class/net/h[1-3]r* /sys/class/net/s[0-9]*; do
        [ ! -e "$link" ] || ip link del "${link##*/}"
    done
}

# What a host's link forgets when it goes down, how the others are reached, as lines for ip.
ways() { # host, rail
    local b address link=h${1}r$2
    for b in 1 2 3; do
        [ "$b" != "$1" ] && [ -e "/sys/class/net/h${b}r$2" ] || continue
        read -r address <"/sys/class/net/h${b}r$2/address"
        echo "neigh replace 10.8.$2.$b lladdr $address dev $link nud permanent"
        echo "route replace 10.8.$2.$b dev $link src 10.8.$2.$1 table $((1000 + 16 * $2 + 4 * $1 + b))"
    done
}

# Moves a host's link; the tests that know tools/lab.sh's hosts call it. One process: where there is no processor left, each
# takes its time to start. Over a switch it is the switch's port that moves: a host whose own link is down has no routes, and
# may not connect again afterwards (rdma_rxe 6.1).
link() { # host (0: left), rail, up or down
    local host=$(($1 + 1))
    if [ -e "/sys/class/net/s${host}r$2" ]; then
        ip link set "s${host}r$2" "$3"
        return
    fi
    {
        echo "link set h${host}r$2 $3"
        [ "$3" = down ] || ways $host "$2"
    } | ip -batch -
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
    # No cable joins the first left end to any of the right ends that are left.
    [ "$name" != a_rail_is_missing ] || rights=("${rights[@]:1}")
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

load() { # "NAME|CABLES|OPTIONS"
    local name cables options rails serving status=0 tries at=$logs/serving
    IFS='|' read -r name cables options <<<"$1"
    [[ $options == *--seconds* ]] || options+=" --repeat 6"
    rails=$(seq -s, -f '%.0f' 0 $((cables - 1)))
    : >"$at"
    # shellcheck disable=SC2086 # words
    ${sees_right:-} "${guard[@]}" "$bench" serve --once --listen 127.0.0.1:0 --provider verbs --rail-names "right${rails//,/,right}" >"$at" &
    serving=$!
    for ((tries = 0; tries < 600; tries++)); do
        [ -s "$at" ] && break
        sleep 0.1
    done
    # shellcheck disable=SC2086 # options
    "${guard[@]}" "$bench" run --connect "$(sed -n 's/^listening on //p' "$at")" --provider verbs --rail-names "left${rails//,/,left}" \
        --verify $options || status=$?
    [ $status = 0 ] || kill $serving 2>/dev/null
    wait $serving || status=1
    return $status
}

# A light load over two rails, of which the left side's second one loses its port, or its device; over switches, so that the left
# interface stays up. Its log says what happened, in this order.
kernel() { # name
    local log=$logs/kernel.log running status=0 seconds=$((4 * WEFT_TEST_PATIENCE)) sees_right
    no_network
    network 3 2 || return 1
    # (A device goes when all who have it open have closed it, and librdmacm opens all that it sees.)
    sees_right="unshare -m $root/tools/test-verbs.sh --apart right"
    [ "$1" != device_comes_back ] || seconds=$((3 * seconds))
    WEFT_LOG=debug load "$1|2|--pages 4 --page 4K --in-flight 1 --seconds $seconds" 2>$log &
    running=$!
    says "verbs is the only fabric" && sleep 3
    case $1 in
    port_loses_its_link)
        link 0 1 down
        says "rail 1 (left1): its link is down" && says "Network is down; its other lanes (1) carry on" && sleep 3
        link 0 1 up
        says "rail 1 (left1): its link is up again" && says "lane from rail 1 .* is up again" ;;
    device_is_removed)
        rdma link del left1 && # It waits until nobody has it open.
            says "rail 1 (left1): its device was removed" && says "its other lanes (1) carry on" ;;
    device_comes_back)
        rdma link del left1 && says "rail 1 (left1): its device was removed" &&
            rdma link add left1 type rxe netdev h1r1 &&
            says "rail 1 (left1): its link is up again" && says "lane from rail 1 .* is up again" && carries left1 &&
            # The other rail makes connections still, whatever librdmacm has made of its device.
            link 0 0 down && says "rail 0 (left0): its link is down" && sleep 1 &&
            link 0 0 up && says "lane from rail 0 .* is up again" && carries left0 ;;
    esac || status=1
    wait $running || status=1
    cat $log
    ! grep -E "is lost|panicked" $log || status=1
    wait
    no_network
    network 2 4 || status=1
    return $status
}
# A device sends more than handshakes.
carries() { # device
    local tries before sent counter=/sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts
    read -r before <"$counter"
    for ((tries = 0; tries < 100 * WEFT_TEST_PATIENCE; tries++)); do
        read -r sent <"$counter"
        [ $((sent - before)) -lt 200 ] || return 0
        sleep 0.1
    done
    echo "$1 has sent $((sent - before)) packets"
    return 1
}
# Runs a command with the devices of one host alone, in its own mount namespace.
apart() { # host, command
    local node device own=/run/devices_of_$1
    rm -rf "$own"
    mkdir "$own"
    cp -a /dev/infiniband/rdma_cm "$own"
    for node in /sys/class/infiniband_verbs/uverbs*; do
        read -r device <"$node/ibdev"
        [[ $device != "$1"* ]] || cp -a "/dev/infiniband/${node##*/}" "$own"
    done
    mount --bind "$own" /dev/infiniband && exec "${@:2}"
}
says() { # a pattern; $log is the caller's
    local tries
    for ((tries = 0; tries < 100 * WEFT_TEST_PATIENCE; tries++)); do
        ! grep -q "$1" "$log" || return 0
        sleep 0.1
    done
    echo "the log has no line: $1"
    return 1
}

# Pages from one process to another over a device of a kind, which is made for it.
kind() { # name
    local link=odd0 mtu=1500 device=odd0 address=10.9.0.1/24 tries status=0
    case $1 in
    mtu_2048) mtu=2200 ;;
    mtu_4096) mtu=4200 ;;
    ipv6_only) address=fd00::1/64 ;;
    bonded) device=mlx5_bond_0 ;;
    esac
    ip link add odd0 mtu $mtu type veth peer name odd1 mtu $mtu
    if [ "$1" = bonded ]; then
        modprobe bonding max_bonds=0 && link=bond0
        ip link add bond0 type bond mode active-backup && ip link set odd0 master bond0
    fi
    ip link set odd1 up
    ip link set $link up
    ip addr add $address dev $link
    rdma link add $device type rxe netdev $link || return 1
    # An IPv6 address is used once it was looked for in the network.
    for ((tries = 0; tries < 100; tries++)); do
        ip addr show dev $link | grep -q tentative || break
        sleep 0.1
    done
    [[ $1 != mtu_* ]] || ibv_devinfo -d $device | grep -q "active_mtu:[[:space:]]*${1#mtu_} " || { echo "the device has another MTU"; status=1; }
    "${guard[@]}" "$bench" loopback --provider verbs --rail-names $device --pages 64 --repeat 4 --verify || status=1
    rdma link del $device
    ip link del odd0
    [ $link = odd0 ] || ip link del $link
    return $status
}

# Limits grow with the time that this machine took to start. All shapes of pages take minutes on any emulated one.
patience() {
    local up
    read -r up _ </proc/uptime
    export WEFT_TEST_PATIENCE=${WEFT_TEST_PATIENCE:-$((4 + ${up%.*} / 10))}
    export WEFT_TEST_SHAPES=${WEFT_TEST_SHAPES:-8}
}

one() { # program, test
    WEFT_TEST_FABRIC=verbs WEFT_RAILS=${WEFT_RAILS-left0,left1} WEFT_TEST_LIBRARY=$programs/libweft.so.0 \
        timeout -k 5 $((60 * WEFT_TEST_PATIENCE)) "$programs/$1" "$2"
}

# Three hosts of four rails, three processes, and what tools/chaos.sh does to them but for links that are slow or lossy, at
# a quarter of the pace: an emulated machine takes seconds to connect.
three_hosts() { # folder of the programs, minutes, seed
    WEFT_TEST_FABRIC=verbs WEFT_LAB_LINKS=$root/tools/test-verbs.sh \
        WEFT_LAB_LEFT='left*' WEFT_LAB_RIGHT='right*' WEFT_LAB_THIRD='third*' \
        WEFT_CHAOS_PACE=${WEFT_CHAOS_PACE:-4} WEFT_CHAOS_ONLY=${WEFT_CHAOS_ONLY:-down flap cut kill stop restart disconnect} \
        "$1/engine" namespaces "$2" "$3" $share/chaos.json
}

short_chaos() {
    no_network
    network 3 4 || return 1
    three_hosts "$programs" 0.5 1 || return 1
    no_network
    network 2 4
}

chaos_inside() { # folder of the programs, minutes, seed
    local status=0
    patience
    network 3 4 || { echo "the machine has no RDMA devices"; exit 1; }
    three_hosts "$@" || status=$?
    sed -nE 's/^  "(operations|faults|.*_completions|late|wrong_bytes|ghost_writes|.*_notifications|revoked_counts|needless_errors|oddities)": ([0-9]+),$/verbs_chaos_\1 \2/p' \
        $share/chaos.json | tee $share/figures
    return $status
}

inside() { # random_fill, weft-bench, folder of the programs, how many have passed before, how the figures are called
    local fill=$1 bench=$2 programs=$3 passed=$4 called=$5 failed=0 skipped=0 logs=/run/logs guard
    local plan at=0 sum name words log=/run/logs/log begin status took pages=0 counted=0 to_count once
    patience
    mkdir -p $logs
    # shellcheck source=tools/pair.sh
    . "$root/tools/pair.sh"
    guard=(timeout --foreground -k 5 $((60 * WEFT_TEST_PATIENCE)))
    network 2 4 || { echo "the machine has no RDMA devices"; exit 1; }
    mapfile -t plan <$share/plan
    for line in "${plan[@]}"; do
        at=$((at + 1))
        read -r sum name words <<<"$line"
        begin=$SECONDS status=0
        # shellcheck disable=SC2086 # words
        case $words in
        fill\ * | load\ * | kernel\ *) "${words%% *}" "${words#* }" >$log 2>&1 </dev/null || status=$? ;;
        *) $words >$log 2>&1 </dev/null || status=$? ;;
        esac
        took="$((SECONDS - begin)) s"
        read -r to_count once <<<"$(awk '/^pages to count: / { a += $4 } /^pages counted once: / { b += $4 } END { print a + 0, b + 0 }' $log)"
        pages=$((pages + to_count)) counted=$((counted + once))
        case $status in
        0) passed=$((passed + 1)); echo "[$at/${#plan[@]}] $name: ok, $took"; echo "$sum $name" >>$share/passed ;;
        77) skipped=$((skipped + 1)); echo "[$at/${#plan[@]}] $name: skipped: $(sed -n 's/^SKIPPED: //p' $log | head -n 1)" ;;
        *)
            failed=$((failed + 1))
            printf '%s\n%s\n' "[$at/${#plan[@]}] $name: FAILED: status $status, $took" \
                "$(tail -n 40 $log | cut -c 1-300 | sed 's/^/    | /')" ;;
        esac
    done
    {
        echo "${called}_passed $passed"
        echo "${called}_failed $failed"
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
--apart) apart "${@:2}" ;;
--cables) network 2 "${2:-2}" ;;
*)
    [ $# -ge 3 ] || { echo "usage: tools/test-verbs.sh LIBDIR RANDOM_FILL WEFT_BENCH [FILTER]" >&2; exit 2; }
    outside "$@" ;;
esac
