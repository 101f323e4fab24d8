#!/usr/bin/env bash
# Runs ffi-tests with what finds errors that a test alone does not see (nightly Rust; valgrind):
#     tools/sanitize.sh [FILTER] [asan|tsan|valgrind]...
#
# asan      the library with AddressSanitizer: memory that is used after its end or outside of it, and leaks
# tsan      library and Rust's own with ThreadSanitizer: data races; over fabrics of our own, without libfabric
# valgrind  the library as it is: memory that is read before it is written
#
# FILTER is that of ffi-tests/run. All of it takes about an hour on four processors: a quarter for each of asan and tsan,
# half of it for valgrind. The tests' own time limits are multiplied, and those of gigabytes and of many minutes are left
# out. With SHORT=1 it is about a minute: some programs with asan (if there is a nightly Rust) and valgrind; the last line
# says what was left out.
set -uo pipefail
cd "$(dirname "$0")/.."
filter=${1:-}
shift || true
kinds=("$@")
every=(asan tsan valgrind)
[ ${#kinds[@]} -gt 0 ] || kinds=("${every[@]}")
target=x86_64-unknown-linux-gnu
out=$PWD/target/sanitize
failed=()
export WEFT_TEST_SKIP=${WEFT_TEST_SKIP-'^large\.|4_gib|ten_million|hundred_thousand|thousand_peers|wake_ups_are_not_lost|leave_no_memory'}
mkdir -p "$out"
has_nightly() { rustc +nightly --print sysroot >/dev/null 2>&1; }

if [ -n "${SHORT:-}" ]; then
    kinds=(valgrind)
    if has_nightly; then kinds=(asan valgrind); fi
    export WEFT_TEST_PROGRAMS="lifecycle messages fences" WEFT_TEST_FABRICS="host sim:like=efa"
    WEFT_TEST_SKIP+="|eight_senders_to_one_receiver|repeated_opens"
fi
if [[ " ${kinds[*]} " == *san* ]] && ! has_nightly; then
    echo "A nightly Rust is missing: rustup toolchain install nightly --profile minimal" >&2
    exit 1
fi
if [[ " ${kinds[*]} " == *tsan* ]] && [ ! -d "$(rustc +nightly --print sysroot)/lib/rustlib/src" ]; then
    echo "Rust's own sources are missing: rustup component add rust-src --toolchain nightly" >&2
    exit 1
fi

runtime() { # asan, tsan: the runtime that fits rustc's instrumentation; gcc's calls are the same
    echo "$(rustc +nightly --print sysroot)/lib/rustlib/$target/lib/librustc-nightly_rt.$1.a"
}

# A compiler that instruments as gcc does, and links Rust's runtime.
compiler() { # kind, gcc's name of it
    cat >"$out/cc-$1" <<SCRIPT
#!/usr/bin/env bash
set -e
case " \$* " in
*" -c "*) exec gcc -fsanitize=$2 -fno-omit-frame-pointer "\$@" ;;
esac
exec gcc "\$@" -rdynamic -Wl,--whole-archive "$(runtime "$1")" -Wl,--no-whole-archive -lm -ldl -lpthread -lrt
SCRIPT
    chmod +x "$out/cc-$1"
}

build() { # kind, rustc's name of it, flags of cargo...
    local kind=$1 name=$2
    shift 2
    RUSTFLAGS="-Zsanitizer=$name" CARGO_TARGET_DIR=$PWD/target/$kind "${CARGO:-cargo}" +nightly build --release --locked \
        -p weft-simulated --target $target --config profile.release.lto=false --config profile.release.codegen-units=16 "$@"
}

# Each line of the log that a sanitizer wrote, once.
finds() { # logs
    grep -hE '(SUMMARY: [A-Za-z]+Sanitizer|ERROR SUMMARY: [1-9])' "$@" | sed 's/^==[0-9]*==//' | sort | uniq -c | sort -rn
}

# Memory of the library that nothing refers to any longer, by test; fails if there is any. Not of processes that fork or end
# without closing, nor what handles stand for that are still open: their table is a mapping that is not searched.
leaks() { # logs
    awk 'FNR == 1 { name = FILENAME; sub(".*/", "", name) }
        /^(Direct|Indirect) leak/ { direct = /^Direct/; text = $0; next }
        direct { text = text "\n" $0 }
        direct && /^$/ {
            if (text ~ /weft::/ && text !~ /weft::capi::handle/ && name !~ /fork|exit_with_open_endpoints_does_not_hang/) { print name ": " text; found = 1 }
            direct = 0
        }
        END { exit found }' "$@"
}

tests() { # kind, library's folder
    local status=0
    WEFT_TEST_SIMULATED=$([ "$1" = valgrind ] || echo 1) WEFT_TEST_OUT=$out/$1 WEFT_TEST_PATIENCE=${WEFT_TEST_PATIENCE:-8} ffi-tests/run "$2" "$filter" || status=1
    finds "$out/$1"/*.log
    [ "$status" = 0 ] || failed+=("$1")
}

asan() {
    build asan address && compiler asan address || { failed+=(asan); return; }
    # The tests themselves leave memory behind; what counts is the library's, which `leaks` looks for. How much an endpoint
    # takes is not the library's there.
    WEFT_TEST_SKIP=${WEFT_TEST_SKIP:-^$}'|endpoint_memory_is_limited' \
        ASAN_OPTIONS=detect_stack_use_after_return=1:strict_init_order=1 LSAN_OPTIONS=exitcode=0 \
        WEFT_TEST_CC=$out/cc-asan WEFT_TEST_FABRICS=${WEFT_TEST_FABRICS:-host tcp sim:like=efa} \
        tests asan "target/asan/$target/release"
    leaks "$out"/asan/*.log || failed+=("leaks")
}

tsan() {
    build tsan thread -Zbuild-std && compiler tsan thread || { failed+=(tsan); return; }
    TSAN_OPTIONS=suppressions=$PWD/tools/races.supp:second_deadlock_stack=1:atexit_sleep_ms=0 \
        WEFT_TEST_CC=$out/cc-tsan WEFT_TEST_FABRICS=${WEFT_TEST_FABRICS:-host sim:like=efa} \
        tests tsan "target/tsan/$target/release"
}

# Without some of many minutes, one that leaves valgrind itself no memory, and one whose SIGSYS it cannot handle.
valgrind() {
    WEFT_TEST_SKIP=${WEFT_TEST_SKIP:-^$}'|many_counters|million_|alloc_of_an_unsupported|destroy_waits_for_no_allocation' \
        WEFT_TEST_CC=gcc WEFT_TEST_FABRICS=${WEFT_TEST_FABRICS:-host sim:like=efa} \
        WEFT_TEST_WRAPPER="valgrind --quiet --fair-sched=try --error-exitcode=9 --leak-check=no --suppressions=tools/valgrind.supp" \
        tests valgrind target/release
}

for kind in "${kinds[@]}"; do
    printf '\n== %s\n' "$kind"
    $kind
done
if [ -n "${SHORT:-}" ]; then
    left_out=$(printf '%s\n' "${every[@]}" | grep -vxF "$(printf '%s\n' "${kinds[@]}")" | paste -sd' ')
    echo "Short: ${kinds[*]} with $WEFT_TEST_PROGRAMS over $WEFT_TEST_FABRICS; left to \`make sanitize\`: $left_out, and all else."
fi
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
