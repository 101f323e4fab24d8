#!/usr/bin/env bash
# Two hosts (or three) on one machine: network namespaces joined by rails (veth pairs) of a given rate, a command across
# them, and nothing left behind. Can also be sourced, for its functions.
lab_usage() {
    cat <<'USAGE'
tools/lab.sh [OPTIONS] [COMMAND]   makes the two hosts, runs COMMAND on both of them, removes them
tools/lab.sh down|up RAIL          takes a rail of the running lab down, or up again
tools/lab.sh rate RAIL RATE        changes its rate

  --left COMMAND, --right COMMAND  another command for each host
  --around COMMAND                 once, outside; the hosts' names are in WEFT_LAB_LEFT, WEFT_LAB_RIGHT and
                                   WEFT_LAB_THIRD (ip netns exec "$WEFT_LAB_LEFT" ...); with --subnet also
                                   WEFT_LAB_SWITCH, whose ports are left0, right0, left1, ...
  --hosts 3                        a third host; each rail is a switch that all three are plugged into
  --rails N                        rails, 1 to 64 (default 4); rail0, rail1, ... on both hosts
  --right-rails N                  another number on the right host; implies --router
  --rate RATE                      as "1gbit", tc's way (default: as fast as it goes)
  --rates RATE,RATE,...            one for each rail, of both hosts
  --mtu BYTES                      default 9000
  --router                         the hosts are in different subnets, and a third host forwards
  --subnet                         all rails are plugged into one switch, and in one subnet
  --arp-ignore 0|1                 with --subnet: whether each NIC answers ARP for its own addresses alone (default 1)
  --host-routes                    addresses are /32, with a route to the other side's
  --bridge NAME                    on both hosts a bridge NAME with 172.17.0.1/16, as container engines make one
  --down RAIL                      this rail is down from the start

A command finds in its environment WEFT_LAB_LEFT_ADDRESS and WEFT_LAB_RIGHT_ADDRESS, of each host's first rail, and
WEFT_LAB_SIDE, left or right. Without a command the lab stays until it is interrupted. Needs root.
USAGE
}

PATH=$PATH:/usr/sbin:/sbin # the folders of ip and tc, which PATH may lack
# The prefix includes the PID namespace: process numbers in the names of labs mean nothing to others, which may share
# /run/netns.
lab_prefix=weft-lab-$(readlink /proc/self/ns/pid | tr -cd 0-9)
lab_reset() {
    lab_rails=4 lab_right_rails='' lab_rate='' lab_rates=() lab_mtu=9000 lab_router='' lab_host_routes='' lab_bridge=''
    lab_down_rail='' lab_hosts=2 lab_subnet='' lab_arp_ignore=1
}
lab_reset

# Why a lab cannot be made here; nothing if it can.
lab_missing() {
    if [ "$(id -u)" != 0 ]; then echo "only root can make network namespaces"
    elif ! command -v ip >/dev/null || ! command -v tc >/dev/null; then echo "iproute2 is not installed"
    elif ! unshare --mount --net true 2>/dev/null; then
        echo "no namespaces can be made here (in a container that takes CAP_SYS_ADMIN)"
    fi
}

lab_fail() { echo "lab: $1" >&2; return 1; }

lab_space() { echo "$lab_prefix-$$-$1"; } # side

lab_in() { ip netns exec "$(lab_space "$1")" "${@:2}"; } # side, command...

# Labs whose owner was killed: their namespaces carry its process id. What still runs in them goes, too.
lab_sweep() {
    local space owner
    for space in $(ip netns list | grep -o "^$lab_prefix-[0-9]*-[a-z]*"); do
        owner=${space#"$lab_prefix"-}
        owner=${owner%%-*}
        grep -q . "/proc/$owner/cmdline" 2>/dev/null && continue # a zombie has none
        ip netns pids "$space" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
        ip netns del "$space" 2>/dev/null || true
    done
}

lab_remove() { # The cables go with their namespaces.
    local side
    for side in left right router third switch; do
        ip netns del "$(lab_space "$side")" 2>/dev/null || true
    done
}

lab_host() { # side
    ip netns add "$(lab_space "$1")" || return 1
    lab_in "$1" ip link set lo up || return 1
    # Some default choices (bbr) halve what short ways carry. It is this namespace's own setting.
    lab_in "$1" sh -c 'echo reno >/proc/sys/net/ipv4/tcp_congestion_control' || return 1
}

lab_cable() { # side, name, side, name
    ip -n "$(lab_space "$1")" link add "$2" mtu "$lab_mtu" type veth \
        peer name "$4" mtu "$lab_mtu" netns "$(lab_space "$3")" || return 1
    ip -n "$(lab_space "$1")" link set "$2" up || return 1
    ip -n "$(lab_space "$3")" link set "$4" up || return 1
}

lab_shape() { # namespace, rail, rate
    [ -z "$3" ] || ip netns exec "$1" tc qdisc replace dev "$2" root tbf rate "$3" burst 256k latency 20ms
}

lab_rate_of() { echo "${lab_rates[$1]:-$lab_rate}"; } # rail

lab_direct_rail() { # rail
    local bits=24 side own=1 other=2
    [ -z "$lab_host_routes" ] || bits=32
    lab_cable left "rail$1" right "rail$1" || return 1
    for side in left right; do
        lab_in "$side" ip addr add "10.77.$1.$own/$bits" dev "rail$1" || return 1
        [ "$bits" = 24 ] || lab_in "$side" ip route add "10.77.$1.$other/32" dev "rail$1" src "10.77.$1.$own" || return 1
        lab_shape "$(lab_space "$side")" "rail$1" "$(lab_rate_of "$1")" || return 1
        own=2 other=1
    done
}

# Each address answers through its own rail: the routes follow the source.
lab_routed_rail() { # side, subnets of the side, rail
    local own=$2.$3.1 bits=24 gateway=$2.$3.254 table=$((100 + $3))
    [ -z "$lab_host_routes" ] || bits=32
    lab_cable "$1" "rail$3" router "$1$3" || return 1
    lab_in router ip addr add "$gateway/24" dev "$1$3" || return 1
    lab_in "$1" ip addr add "$own/$bits" dev "rail$3" || return 1
    lab_in "$1" ip route add default via "$gateway" dev "rail$3" onlink table "$table" || return 1
    lab_in "$1" ip rule add from "$own" table "$table" || return 1
    [ "$3" != 0 ] || lab_in "$1" ip route add default via "$gateway" dev "rail$3" onlink src "$own" || return 1
    lab_shape "$(lab_space "$1")" "rail$3" "$(lab_rate_of "$3")" || return 1
}

# The switch has no address, and one bridge for each rail.
lab_switched_rail() { # rail
    local side own=1
    lab_in switch ip link add "net$1" type bridge || return 1
    lab_in switch ip link set "net$1" up || return 1
    for side in left right third; do
        lab_cable "$side" "rail$1" switch "$side$1" || return 1
        lab_in switch ip link set "$side$1" master "net$1" || return 1
        lab_in "$side" ip addr add "10.77.$1.$own/24" dev "rail$1" || return 1
        lab_shape "$(lab_space "$side")" "rail$1" "$(lab_rate_of "$1")" || return 1
        own=$((own + 1))
    done
}

# One bridge for all rails of both hosts, whose addresses are of one subnet.
lab_subnet_rail() { # rail
    local side own=$((2 * $1 + 1))
    for side in left right; do
        lab_cable "$side" "rail$1" switch "$side$1" || return 1
        lab_in switch ip link set "$side$1" master net || return 1
        lab_in "$side" ip addr add "10.77.0.$own/24" dev "rail$1" || return 1
        lab_shape "$(lab_space "$side")" "rail$1" "$(lab_rate_of "$1")" || return 1
        own=$((own + 1))
    done
}

# A bridge runs only with something plugged in.
lab_add_bridge() { # side
    lab_in "$1" ip link add "$lab_bridge" type bridge || return 1
    lab_in "$1" ip addr add 172.17.0.1/16 dev "$lab_bridge" || return 1
    lab_in "$1" ip link add container0 type veth peer name container1 || return 1
    lab_in "$1" ip link set container0 master "$lab_bridge" up || return 1
    lab_in "$1" ip link set container1 up || return 1
    lab_in "$1" ip link set "$lab_bridge" up || return 1
}

# The kernel takes a moment, and libfabric leaves out what is not running.
lab_running() { # side
    local try
    for ((try = 0; try < 100; try++)); do
        lab_in "$1" ip -br link show up | grep -q ' \(DOWN\|LOWERLAYERDOWN\) ' || return 0
        sleep 0.05
    done
    lab_fail "the rails do not come up"
}

lab_make() {
    local rail side
    lab_sweep
    lab_left_address=10.77.0.1 lab_right_address=10.77.0.2
    lab_host left && lab_host right || return 1
    if [ -n "$lab_router" ]; then
        lab_right_address=10.78.0.1
        lab_host router || return 1
        lab_in router sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward' || return 1
        for ((rail = 0; rail < lab_rails; rail++)); do lab_routed_rail left 10.77 "$rail" || return 1; done
        for ((rail = 0; rail < ${lab_right_rails:-$lab_rails}; rail++)); do
            lab_routed_rail right 10.78 "$rail" || return 1
        done
    elif [ -n "$lab_subnet" ]; then
        lab_host switch && lab_in switch ip link add net mtu "$lab_mtu" type bridge && lab_in switch ip link set net up || return 1
        for side in left right; do
            lab_in "$side" sh -c "echo $lab_arp_ignore >/proc/sys/net/ipv4/conf/all/arp_ignore" || return 1
        done
        for ((rail = 0; rail < lab_rails; rail++)); do lab_subnet_rail "$rail" || return 1; done
        lab_running switch || return 1
    elif [ "$lab_hosts" = 3 ]; then
        lab_host third && lab_host switch || return 1
        for ((rail = 0; rail < lab_rails; rail++)); do lab_switched_rail "$rail" || return 1; done
        lab_running third && lab_running switch || return 1
    else
        for ((rail = 0; rail < lab_rails; rail++)); do lab_direct_rail "$rail" || return 1; done
    fi
    if [ -n "$lab_bridge" ]; then
        lab_add_bridge left && lab_add_bridge right || return 1
    fi
    for side in left right ${lab_router:+router}; do lab_running "$side" || return 1; done
    [ -z "$lab_down_rail" ] || lab_in left ip link set "rail$lab_down_rail" down
}

lab_number() { # option, value, least, most
    [[ "$2" =~ ^[0-9]{1,6}$ ]] && [ "$2" -ge "$3" ] && [ "$2" -le "$4" ] && return
    lab_fail "$1 $2: it must be a number from $3 to $4"
}

# Reads the options that shape the lab; stores in `lab_taken` how many words they were.
lab_options() {
    lab_taken=0
    while [ $# -gt 0 ]; do
        case $1 in
            --rails | --right-rails | --rate | --rates | --mtu | --bridge | --down | --hosts | --arp-ignore)
                [ $# -ge 2 ] || { lab_fail "$1 needs a value"; return 1; } ;;
        esac
        case $1 in
            --rails) lab_number "$1" "$2" 1 64 && lab_rails=$2 ;;
            --right-rails) lab_number "$1" "$2" 1 64 && lab_right_rails=$2 lab_router=yes ;;
            --rate) lab_rate=$2 ;;
            --rates) IFS=, read -ra lab_rates <<<"$2" ;;
            --mtu) lab_number "$1" "$2" 576 65535 && lab_mtu=$2 ;;
            --bridge) lab_bridge=$2 ;;
            --down) lab_number "$1" "$2" 0 63 && lab_down_rail=$2 ;;
            --hosts) lab_number "$1" "$2" 2 3 && lab_hosts=$2 ;;
            --router) lab_router=yes ;;
            --subnet) lab_subnet=yes ;;
            --arp-ignore) lab_number "$1" "$2" 0 1 && lab_arp_ignore=$2 ;;
            --host-routes) lab_host_routes=yes ;;
            *) return 0 ;;
        esac || return 1
        case $1 in --router | --host-routes | --subnet) set -- x "$@" ; lab_taken=$((lab_taken - 1)) ;; esac
        shift 2
        lab_taken=$((lab_taken + 2))
    done
}

# Where this file is run, and not sourced, from here on.
lab_children=()

lab_end() { # Ends what still runs, politely at first, and removes the lab.
    local signal pid try alive
    for signal in INT TERM KILL; do
        alive=
        for pid in "${lab_children[@]}"; do kill "-$signal" "$pid" 2>/dev/null && alive=yes; done
        for ((try = 0; try < 40; try++)); do
            [ -n "$alive" ] || break 2
            sleep 0.05
            alive=
            for pid in "${lab_children[@]}"; do kill -0 "$pid" 2>/dev/null && alive=yes; done
        done
    done
    lab_remove
}

lab_start() { # side ("": outside), command
    local space=()
    [ -z "$1" ] || space=(ip netns exec "$(lab_space "$1")")
    WEFT_LAB_SIDE=$1 "${space[@]}" bash -c "$2" &
    lab_children+=($!)
}

# Until all have ended. One that fails takes the others with it, after some seconds.
lab_wait() {
    local pid left status=0 patience=100
    while [ ${#lab_children[@]} != 0 ] && [ "$patience" != 0 ]; do
        sleep 0.05
        left=()
        for pid in "${lab_children[@]}"; do
            if kill -0 "$pid" 2>/dev/null; then left+=("$pid"); else wait "$pid" || status=$?; fi
        done
        lab_children=("${left[@]}")
        [ "$status" = 0 ] || patience=$((patience - 1))
    done
    return "$status"
}

lab_main() {
    local left='' right='' around='' why
    why=$(lab_missing)
    [ -z "$why" ] || { lab_fail "$why"; exit 1; }
    while [ $# -gt 0 ]; do
        lab_options "$@" || exit 2
        shift "$lab_taken"
        case ${1:-} in
            --left) left=${2:-} ;;
            --right) right=${2:-} ;;
            --around) around=${2:-} ;;
            -*) lab_fail "$1: no such option; --help tells what there is"; exit 2 ;;
            *) break ;;
        esac
        shift $(($# < 2 ? 1 : 2))
    done
    [ $# -le 1 ] || { lab_fail "$2: one command is enough; quote its words"; exit 2; }
    trap lab_end EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    lab_make || { lab_fail "it could not be made"; exit 1; }
    WEFT_LAB_LEFT=$(lab_space left) WEFT_LAB_RIGHT=$(lab_space right)
    if [ "$lab_hosts" = 3 ]; then
        WEFT_LAB_THIRD=$(lab_space third)
        export WEFT_LAB_THIRD
    fi
    if [ -n "$lab_subnet" ]; then
        WEFT_LAB_SWITCH=$(lab_space switch)
        export WEFT_LAB_SWITCH
    fi
    WEFT_LAB_LEFT_ADDRESS=$lab_left_address WEFT_LAB_RIGHT_ADDRESS=$lab_right_address
    export WEFT_LAB_LEFT WEFT_LAB_RIGHT WEFT_LAB_LEFT_ADDRESS WEFT_LAB_RIGHT_ADDRESS
    left=${left:-${1:-}} right=${right:-${1:-}}
    [ -z "$left" ] || lab_start left "$left"
    [ -z "$right" ] || lab_start right "$right"
    [ -z "$around" ] || lab_start '' "$around"
    if [ ${#lab_children[@]} = 0 ]; then
        echo "The hosts are $WEFT_LAB_LEFT ($lab_left_address) and $WEFT_LAB_RIGHT ($lab_right_address):"
        echo "    ip netns exec $WEFT_LAB_LEFT COMMAND"
        echo "Interrupt this to remove them."
        sleep infinity &
        lab_children+=($!)
    fi
    lab_wait
}

lab_change() { # down, up or rate; rail; rate
    local why spaces space
    why=$(lab_missing)
    [ -z "$why" ] || { lab_fail "$why"; exit 1; }
    { [ $# = 2 ] || { [ "$1" = rate ] && [ $# = 3 ]; }; } || { lab_usage >&2; exit 2; }
    lab_sweep
    spaces=(${WEFT_LAB_LEFT:-$(ip netns list | grep -o "^$lab_prefix-[0-9]*-left")})
    [ ${#spaces[@]} = 1 ] || { lab_fail "${#spaces[@]} labs are running: name one in WEFT_LAB_LEFT"; exit 1; }
    for space in "${spaces[0]}" "${spaces[0]%left}right"; do
        if [ "$1" = rate ]; then lab_shape "$space" "rail$2" "$3"; else ip -n "$space" link set "rail$2" "$1"; fi || exit 1
    done
}

if [ "${BASH_SOURCE[0]:-$0}" = "$0" ]; then
    set -uo pipefail
    case ${1:-} in
        -h | --help) lab_usage ;;
        down | up | rate) lab_change "$@" ;;
        *) lab_main "$@" ;;
    esac
fi
