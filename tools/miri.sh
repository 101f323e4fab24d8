#!/usr/bin/env bash
# Runs tests that need no libfabric in Miri (nightly Rust), which sees undefined behaviour in unsafe code, and what a
# processor with weak memory may do to code that threads share: whole endpoints over simulated NICs
# (rust/tests/endpoints), and unit tests:
#     tools/miri.sh [SEEDS] [FILTER...]
# Endpoints, and tests of threads, run with SEEDS (16) schedules; each test and schedule takes some ten seconds of a CPU.
# With FILTER, only endpoints' tests with that in their names. Leaves in target/figures: miri_tests, tests that passed
# with all schedules, and miri_findings, how often Miri found undefined behaviour.
#
# For a machine without Rust and without network:
#     tools/miri.sh pack FOLDER          # beside others, files PART.tar.xz of at most 60 MB: unpack all into one folder there
#     FOLDER/tools/miri.sh [SEEDS] [FILTER...]
# CPUs: how many run at once. LIMIT: seconds after which nothing is begun; what has run is not run again by the next call
# (target/miri/results), unless the tests have changed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
source=$PWD target=$PWD/target/miri
results=$target/results/${sources:-}
carried=$source/carried
# No file of the machine is read: Miri cannot open all of them.
mkdir -p "$target/no-sysfs"
export WEFT_SYSFS_ROOT=$target/no-sysfs
# Tree borrows: what crossbeam does is fine by it. Few failures of weak exchanges, after which locks spin.
flags="-Zmiri-disable-isolation -Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-compare-exchange-weak-failure-rate=0.1"
flags+=" -Zmiri-provenance-gc=3000"
# To Miri a NIC's copy is atomics of words and of single bytes, one after the other on the same bytes: sound where nothing
# races, but not known to Miri's buffers of stores, which end it. The unit tests of threads have these buffers.
of_endpoints="-Zmiri-disable-weak-memory-emulation"
threads=(transfer::queue transfer::gate)
alone=(codec:: status:: logging:: clock:: rail:: memory::remote fabric::host::request fabric::registry
    wire::address session::approach session::plan peer::gone transfer::claims transfer::geometry transfer::list)
# Tests of one process: it begins in a few seconds, and takes a minute for these.
together=6

build() { # the crates, as plans: how to run each one's tests without cargo
    if ! cargo +nightly miri --version >/dev/null 2>&1; then
        if [ -n "${WEFT_NO_INSTALL:-}" ]; then
            echo "Miri is missing: rustup component add miri rust-src --toolchain nightly" >&2
            exit 1
        fi
        rustup component add miri rust-src --toolchain nightly
    fi
    mkdir -p "$target/plans"
    local test name
    for test in "endpoints -p libweft --features sim --test endpoints" "words -p libweft --test words" "unit -p weft --lib"; do
        name=${test%% *}
        # shellcheck disable=SC2086
        CARGO_TARGET_DIR=$target cargo +nightly miri test --locked --no-run ${test#* } 2>&1 | tee "$target/$name.log"
        [ "${PIPESTATUS[0]}" = 0 ] || exit 1
        tools/miri-plan.py "$(sed -n 's/^  Executable .*(\(.*\))$/\1/p' "$target/$name.log")" "$source" \
            >"$target/plans/$name" || exit 1
    done
    toolchain=$(rustc +nightly --print sysroot)
    sysroot=$(CARGO_TARGET_DIR=$target cargo +nightly miri setup --print-sysroot) || exit 1
}

pack() { # folder
    build
    local to=$1 part
    rm -rf "$to" && mkdir -p "$to"
    to=$(cd "$to" && pwd)
    part() { # name, folder, what there
        tar -C "$2" -cf - "${@:3}" | xz -4 -T0 >"$to/$1.tar.xz" || exit 1
        ls -l "$to/$1.tar.xz"
    }
    rm -rf "$target/pack" && mkdir -p "$target/pack/carried"
    ln -s "$toolchain" "$target/pack/carried/toolchain"
    ln -s "$sysroot" "$target/pack/carried/sysroot"
    in_pack() { (cd "$target/pack" && compgen -G "$1"); }
    local of_source
    mapfile -t of_source < <(ls -d target/miri/plans target/miri/miri/*/debug/deps/*.rmeta target/miri/miri/debug/deps/*.so)
    # shellcheck disable=SC2046
    part llvm "$target/pack" $(in_pack 'carried/toolchain/lib/libLLVM.so.*')
    # shellcheck disable=SC2046
    part driver "$target/pack" carried/toolchain/bin/miri $(in_pack 'carried/toolchain/lib/librustc_driver-*.so')
    # shellcheck disable=SC2046
    part sysroot "$target/pack" $(in_pack 'carried/sysroot/lib/rustlib/*/lib/*.rlib')
    part crates "$source" "${of_source[@]}" src rust/tests tools/miri.sh
}

play() { # name of a plan, Miri's flags, the tests' arguments
    # shellcheck disable=SC1090
    . "$target/plans/$1"
    # shellcheck disable=SC2086
    (cd "$source" && env "${environment[@]}" MIRI_CWD="$source" \
        "$toolchain/bin/miri" "${arguments[@]}" --sysroot "$sysroot" $flags $2 -- "${@:3}")
}

unit() { # its name, plan, flags, arguments: once
    [ -e "$results/$1" ] && return
    [ $(($(date +%s) - began)) -lt "${LIMIT:-1000000}" ] || return
    play "${@:2}" >"$results/$1.part" 2>&1
    echo "rc $?" >>"$results/$1.part"
    mv "$results/$1.part" "$results/$1"
    echo "$(grep -c '^test .* ok$' "$results/$1") passed, $(tail -n 1 "$results/$1"): $1"
}

case ${1:-} in
pack)
    pack "${2:?pack FOLDER}"
    exit
    ;;
unit)
    unit "${@:2}"
    exit
    ;;
esac
seeds=${1:-16}
shift || true
[[ $seeds =~ ^[1-9][0-9]*$ ]] || { sed -n 's/^#     //p' "$0" >&2; exit 2; }
if [ -d "$carried" ]; then
    toolchain=$carried/toolchain sysroot=$carried/sysroot
else
    build
fi
began=$(date +%s)
# What has run is of these sources.
sources=$(find src rust/tests "$0" -type f -print0 | sort -z | xargs -0 cat | sha256sum | cut -c1-16)
results+=$sources
mkdir -p "$results"
units=$(mktemp)
trap 'rm -f "$units"' EXIT

names() { # plan, parts of names
    play "$1" "" --list "${@:2}" 2>/dev/null | sed -n 's/: test$//p'
}

line() {
    local IFS='|'
    echo "$*"
}

scheduled() { # plan, flags, parts of names
    local all seed at
    mapfile -t all < <(names "$1" "${@:3}")
    [ ${#all[@]} != 0 ] || { echo "no tests of $1 ${*:3}" >&2; exit 1; }
    # All schedules of some tests, then of the next.
    for ((at = 0; at < ${#all[@]}; at += together)); do
        for ((seed = 0; seed < seeds; seed++)); do
            line "$1.$at.$seed" "$1" "$2 -Zmiri-seed=$seed" --exact "${all[@]:at:together}"
        done
    done >>"$units"
}

scheduled endpoints "$of_endpoints" "$@"
if [ $# = 0 ]; then
    scheduled unit "" "${threads[@]}"
    # The crate's access to memory, which needs no endpoint.
    scheduled words ""
    for filter in "${alone[@]}"; do
        line "alone.$filter" unit "" "$filter"
    done >>"$units"
fi
export toolchain sysroot began sources
# shellcheck disable=SC2016
xargs -P "${CPUS:-$(nproc)}" -d '\n' -n 1 bash -c 'IFS="|" read -ra all <<<"$1" && exec "$0" unit "${all[@]}"' \
    "$source/tools/miri.sh" <"$units"

left=0 failed=() tests=0
while IFS='|' read -r name _; do
    if [ ! -e "$results/$name" ]; then
        left=$((left + 1))
    elif [ "$(tail -n 1 "$results/$name")" != "rc 0" ]; then
        failed+=("$results/$name")
    fi
done <"$units"
# Tests that passed with each schedule.
tests=$(cat "$results"/*.*.* 2>/dev/null | sed -n 's/^test \(.*\) \.\.\. ok$/\1/p' | sort | uniq -c |
    awk -v seeds="$seeds" '$1 >= seeds' | wc -l)
findings=$(cat "$results"/*.* 2>/dev/null | grep -c 'error: Undefined Behavior')
mkdir -p target/figures
figure() { echo "$1: $2"; echo "$2" >"target/figures/$1"; }
figure miri_tests "$tests"
figure miri_findings "$findings"
[ "$left" = 0 ] || echo "not run yet: $left of $(wc -l <"$units") parts; call again"
[ ${#failed[@]} = 0 ] || { printf 'failed: %s\n' "${failed[@]}"; exit 1; }
[ "$left" = 0 ]
