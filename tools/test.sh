#!/usr/bin/env bash
# Every test there is, one kind after the other; a failure does not keep the next kind from running.
#     tools/test.sh LIBRARY_FOLDER RANDOM_FILL
set -uo pipefail
cd "$(dirname "$0")/.."
library=$(realpath "${1:?where is libweft.so?}")
fill=$(realpath "${2:?where is random_fill?}")
log=$(mktemp)
trap 'rm -f "$log" "$log.said"' EXIT
figure=target/figures/test_minutes
rm -f "$figure" # of the last run that came to its end
passed=0 failed=0 skipped=0 summary=() failures=()

# The lines that name what failed: ours and cargo's.
named() { grep -E '^(FAILED  |[^ ]+: FAILED|test .* \.\.\. FAILED$)' "$log"; }

# Adds up the lines "N passed, N failed, N skipped" (ours) and "N passed; N failed; N ignored" (cargo's).
count() { # a word for the number: passed, failed, "skipped|ignored"
    grep -E '^(test result: .*|)[0-9]+ passed[,;] ' "$log" | grep -oE "[0-9]+ ($1)" | awk '{ n += $1 } END { print n + 0 }'
}

stage() { # title, command...
    local title=$1 begin=$SECONDS status p f s
    shift
    printf '\n== %s\n' "$title"
    "$@" 2>&1 </dev/null | tee "$log"
    status=${PIPESTATUS[0]}
    p=$(count passed) f=$(count failed) s=$(count 'skipped|ignored')
    # One that failed without counting, or that ran nothing at all, is a failure too.
    if [ "$f" = 0 ] && { [ "$status" != 0 ] || [ $((p + s)) = 0 ]; }; then
        f=1
        echo "FAILED  $title ended with status $status" | tee -a "$log"
    fi
    mapfile -t -O "${#failures[@]}" failures < <(named)
    awk -f tools/failures.awk "$log" >>"$log.said"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    summary+=("$(printf '%-28s %4d passed, %d failed, %d skipped, %d s' "$title" "$p" "$f" "$s" $((SECONDS - begin)))")
}

# The tests of the crate libweft are `make crate`. Building is not counted in the figure. What does not build fails below.
# shellcheck disable=SC2086 # flags are words
"${CARGO:-cargo}" test -q ${CARGO_FLAGS:-} --workspace --exclude libweft --no-run >/dev/null
WEFT_TEST_BUILD=1 ffi-tests/run "$library"
began=$(date +%s)

# shellcheck disable=SC2086
stage "Rust" "${CARGO:-cargo}" test ${CARGO_FLAGS:-} --workspace --exclude libweft --no-fail-fast
stage "C, C++ and Python" ffi-tests/run "$library"
stage "CMake, pkg-config, dist" ffi-tests/package/run
stage "ABI" tools/abi.sh check "$library"
stage "Python package" tools/test-python.sh "$library"
stage "Random fill" tools/test-random-fill.sh "$fill"
stage "Lab" tools/test-lab.sh "$fill"
stage "Networks" tools/test-networks.py "$library" --short
stage "Examples and README" tools/test-examples.sh
stage "Documents" tools/test-docs.py
stage "C and Python of documents" tools/test-blocks.py "$library" --not-the-shell

printf '\n'
printf '%s\n' "${summary[@]}"
[ "${#failures[@]}" = 0 ] || printf '%s\n' '' "${failures[@]}" ''
awk '/^[^ ]/ && ++tests > 10 { exit } { print }' "$log.said" # of ten: often nobody sees more than the last lines
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
mkdir -p "${figure%/*}" && awk -v seconds="$(($(date +%s) - began))" 'BEGIN { printf "%.2f\n", seconds / 60 }' >"$figure"
[ "$failed" = 0 ]
