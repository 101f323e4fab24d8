#!/usr/bin/env bash
# The examples, as `make examples` built them, do what they say, and compile without a warning; the program in README.md
# is examples-c/hello.c, and the commands shown beside it build and run it.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# shellcheck source=tools/cases.sh
. tools/cases.sh

block() { # language: the first block of it that follows the heading "## A program"
    awk -v fence="\`\`\`$1" '/^## A program/ { on = 1 } on && $0 == "```" && inside { exit }
        inside { print } on && $0 == fence { inside = 1 }' README.md
}

for compiler in gcc clang; do
    command -v $compiler >/dev/null || continue
    status=0
    for source in examples-c/*.c; do
        $compiler -std=c11 -O2 -Wall -Wextra -Wpedantic -Werror -Iinclude -c "$source" -o "$scratch/object.o" || status=1
    done
    settle "$compiler compiles the examples without a warning" $status
done
for compiler in g++ clang++; do
    command -v $compiler >/dev/null || continue
    status=0
    for source in examples-c/*.cpp; do
        standard=c++17
        [ "$source" != examples-c/coroutines.cpp ] || standard=c++20
        [ "$source" != examples-c/no_exceptions.cpp ] || standard='c++17 -fno-exceptions'
        # shellcheck disable=SC2086 # flags are words
        $compiler -std=$standard -O2 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -Iinclude \
            -c "$source" -o "$scratch/object.o" || status=1
    done
    settle "$compiler compiles the examples in C++ without a warning" $status
done

block c >"$scratch/hello.c"
status=0
diff -u examples-c/hello.c "$scratch/hello.c" || status=1
settle "README: the program is examples-c/hello.c" $status

block sh >"$scratch/commands"
status=0
timeout 300 bash -eu "$scratch/commands" >"$scratch/out" 2>&1 </dev/null || status=$?
grep -qF 'Hello from the other endpoint.' "$scratch/out" || status=1
[ "$status" = 0 ] || { cat "$scratch/commands" "$scratch/out"; }
settle "README: the commands shown build and run it" "$status"

programs=$(realpath "${CARGO_TARGET_DIR:-target}")/examples-c

# Runs one that needs no other; every pattern must be in what it says.
alone() { # title, program, patterns...
    local title=$1 program=$2 status=0 pattern
    shift 2
    timeout 300 "$programs/$program" >"$scratch/out" 2>&1 </dev/null || status=$?
    for pattern in "$@"; do
        grep -qE -- "$pattern" "$scratch/out" || { echo "not there: $pattern"; status=1; }
    done
    [ "$status" = 0 ] || cat "$scratch/out"
    settle "$title" "$status"
}

# Starts one that listens, as a job; stores its $port.
server=0 port=0
serve() { # program, arguments...
    local program=$1
    shift
    timeout 300 "$programs/$program" "$@" >"$scratch/server" 2>&1 </dev/null &
    server=$!
    for _ in $(seq 1000); do
        port=$(sed -n 's/^listening on port //p' "$scratch/server")
        [ -z "$port" ] || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo "$program does not listen; its threads wait in:"
    cat "$scratch/server"
    grep -H . "/proc/$(pgrep -P "$server")/task/"*/{comm,wchan,syscall} 2>/dev/null || true
    kill "$server" 2>/dev/null || true
    port=0
}

# Waits for it; every pattern must be in what it and the others printed, this often.
served() { # title, how often and what...
    local title=$1 status=0
    shift
    wait "$server" || status=$?
    wait # for clients that are jobs
    while [ $# -gt 0 ]; do
        if [ "$(cat "$scratch/server" "$scratch"/client.* | grep -cE -- "$2")" != "$1" ]; then
            echo "not there $1 times: $2"
            status=1
        fi
        shift 2
    done
    [ "$status" = 0 ] || tail -n 20 "$scratch/server" "$scratch"/client.*
    rm -f "$scratch"/client.*
    settle "$title" "$status"
}

client() { # name, program, arguments...
    local name=$1 program=$2
    shift 2
    local said=$scratch/client.$name
    timeout 300 "$programs/$program" "$@" >"$said" 2>&1 </dev/null || echo "status $?" >>"$said"
}

alone "the event loop receives every tick and every answer" epoll 'here received: tick 10' 'there received: tick 10'
alone "pages: both halves of every page are right" pages 'half 0 has arrived' 'half 1 has arrived' ' 0 bytes wrong$'
alone "manual: every write is done without a thread" manual '^1000 writes in [0-9]+ steps, last page right$'
alone "cancel: pages are used again after a fence" cancel '^the write ended with WEFT_' 'and nothing came later$'
alone "file_pages: what was written to a peer's file is read back" file_pages '^16 pages are back, 0 bytes wrong$'
alone "coroutines: each ends, those that wait at the end, too" coroutines '^16 pages are read, 0 bytes wrong$' \
    '^1 was canceled, 1 was late$' '^100 coroutines waited at the end, 100 ended$'
alone "no_exceptions: what a peer causes is survived" no_exceptions '^refused: WEFT_ERR_REVOKED$' '^left: WEFT_ERR_PEER_CLOSED$'
for program in pages_back pages_back_cpp; do
    alone "$program: pages are used again, whatever their sender does" $program \
        '^the user hung up: .*, nothing came later$' '^the time is over: .*, nothing came later$' \
        '^the sender is silent: .*, nothing came later$' '^the sender is dead: .*, nothing came later$'
done
alone "errors: each is answered, and all ends in good order" errors 'UNREACHABLE|PEER_GONE' 'WEFT_ERR_RANGE.*correct the program' \
    'WEFT_ERR_AGAIN.*poll, and try again' '^100 writes, all of which have ended$' 'WEFT_ERR_TIMED_OUT' \
    'given back: WEFT_ERR_HANDLE' 'PEER_CLOSED' '^there is closed' '^here is closed'

serve two_processes receive 0
client sends two_processes send 127.0.0.1 "$port" 'Some text.'
served "two processes: what one sends the other has" 1 '^received 11 bytes: Some text.$' 1 '^sent 11 bytes' 0 '^status'

serve many_peers serve 0 7
for i in 1 2 3 4 5; do
    client $i many_peers ask 127.0.0.1 "$port" "guest $i" &
done
client 6 many_peers die 127.0.0.1 "$port" 'guest 6'
client 7 many_peers ask 127.0.0.1 "$port" 'guest 7'
served "many peers: all are answered, and each end is noticed" 7 '^here is guest' 7 '^guest . received: hello, one of' \
    6 'gone: WEFT_ERR_PEER_CLOSED$' 1 'gone: WEFT_ERR_PEER_LOST$' 0 '^status'

serve prefill_decode decode 0 40
client dies prefill_decode prefill 127.0.0.1 "$port" 3
client lives prefill_decode prefill 127.0.0.1 "$port"
served "prefill_decode: a prefill dies, and another does its requests" 1 '^decode: 40 requests, 0 wrong, [1-9][0-9]* tried again, 256 of 256' \
    2 'decode: a prefill came' 1 '^status 1$' 1 '^prefill: the peer disconnected or shut its endpoint down$'

serve cold_pages store 0 "$scratch"
client engine cold_pages engine 127.0.0.1 "$port"
served "cold_pages: a KV cache on a peer's disk, with eviction" 1 '^engine: 6 blocks are back, 0 bytes wrong$' \
    1 '^engine: a block that was evicted meanwhile: the target refused the grant' 1 '^store: 10 blocks were evicted$' 0 '^status'

counted
