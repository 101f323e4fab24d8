#!/usr/bin/env bash
# The C examples compile without a warning; the program in README.md is examples-c/hello.c, and the commands shown
# beside it build and run it.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0

settle() { # name, 0 or not
    if [ "$2" = 0 ]; then
        passed=$((passed + 1)) && echo "ok      $1"
    else
        failed=$((failed + 1)) && echo "FAILED  $1"
    fi
}

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

block c >"$scratch/hello.c"
status=0
diff -u examples-c/hello.c "$scratch/hello.c" || status=1
settle "README: the program is examples-c/hello.c" $status

block sh >"$scratch/commands"
status=0
timeout 120 bash -eu "$scratch/commands" >"$scratch/out" 2>&1 </dev/null || status=$?
grep -qF 'Hello from the other endpoint.' "$scratch/out" || status=1
[ "$status" = 0 ] || { cat "$scratch/commands" "$scratch/out"; }
settle "README: the commands shown build and run it" "$status"

library=${CARGO_TARGET_DIR:-target}/release
status=0
gcc -std=c11 -O2 -Iinclude examples-c/epoll.c "-L$library" -lweft "-Wl,-rpath,$(realpath "$library")" -o "$scratch/epoll" || status=1
timeout 60 "$scratch/epoll" >"$scratch/out" 2>&1 </dev/null || status=$?
[ "$(grep -c 'hears: tick' "$scratch/out")" = 20 ] || status=1
[ "$status" = 0 ] || cat "$scratch/out"
settle "the event loop hears every tick and every answer" "$status"

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
