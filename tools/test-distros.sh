#!/usr/bin/env bash
# One build, several systems: the libweft.so of this machine, with the C tests that were compiled here, on
#     here       this system, as it is
#     debian13   Debian 13 with its libfabric, made by debootstrap in target/distros (kept for the next time)
#     none       this system without libfabric
#     tools/test-distros.sh LIBRARY_FOLDER [SYSTEM...]     all three, or these
# A line for each test, one for each system, and a last one that counts them. The latter two are folders that a test is
# chrooted to, so they need root. What is mounted there is seen by nobody else, and ends with the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
library=$(realpath "${1:?where is libweft.so?}")
shift
systems=("$@")
[ $# -gt 0 ] || systems=(here debian13 none)
# shellcheck source=tools/cases.sh
. tools/cases.sh
# shellcheck source=tools/roots.sh
. tools/roots.sh
out=$roots
find "$out" -maxdepth 1 -name '*.result' ! -newer "$library/libweft.so" -delete # of another build

# What is between Weft and the system: libfabric, its fabrics, memory, processes and threads.
programs="errors signals lifecycle peers fallback transfers large counters lists messages atomics waiting alloc losses
    unauthenticated fences weft_hpp end_to_end"
# The same without libfabric, as far as tests do not ask for it.
programs_without="no_libfabric lifecycle messages counters lists prepared waiting fences weft_hpp"

# The C and C++ libraries, and nothing else.
make_none() { # folder
    rm -rf "$1"
    mkdir -p "$1"/{proc,sys,dev,tmp}
    chmod 1777 "$1/tmp"
    local so
    for so in $(ldd "$library/libweft.so" "$(c++ -print-file-name=libstdc++.so.6)" | grep -o '/[^ :]*' | sort -u) \
        "$(c++ -print-file-name=libstdc++.so.6)"; do
        [ "$so" = "$library/libweft.so" ] || install -D "$so" "$1/$(realpath -s "$so")"
    done
}

# Which libfabric is there.
libfabric_of() { # folder
    chroot "$1" dpkg-query -W -f '${Version}' libfabric1 | cut -d- -f1
}

# Runs the tests of $system; in a folder, those programs are chrooted to it.
tests() { # fabrics, programs, folder or ""
    local run=(ffi-tests/run "$library")
    if [ -n "$3" ]; then
        mkdir -p "$3$root" "$3$library"
        # shellcheck disable=SC2016 # for the other shell
        run=(unshare -m bash -ec '
            for dir in proc sys dev; do mount --rbind "/$dir" "$1/$dir"; done
            for dir in "$2" "$3"; do mount --bind "$dir" "$1$dir"; done
            export WEFT_TEST_WRAPPER="chroot $1"
            exec ffi-tests/run "$3"' tests "$3" "$root" "$library")
    fi
    WEFT_TEST_OUT=$out/$system.tests WEFT_TEST_FABRICS=$1 WEFT_TEST_PROGRAMS=$(echo $2) "${run[@]}"
}

on() { # system
    case $1 in
        here) tests "tcp host" "$programs" "" && tested_with libfabric "$(libfabric_of /)" ;;
        debian13)
            make_root debian13 trixie libfabric1,libstdc++6 &&
                tests "tcp host" "$programs" "$out/debian13" && tested_with libfabric "$(libfabric_of "$out/debian13")" ;;
        none) make_none "$out/none" && tests "tcp host" "$programs_without" "$out/none" ;;
        *) echo "no such system: $1"; return 2 ;;
    esac
}

for system in "${systems[@]}"; do
    begin=$SECONDS
    rm -f "$out/$system.result"
    if [ "$system" != here ] && ! may_chroot; then
        echo "== $system: skipped: only root can run tests in another folder"
        skipped=$((skipped + 1))
        continue
    fi
    echo "== $system"
    if on "$system"; then
        echo passed >"$out/$system.result"
        passed=$((passed + 1))
    else
        echo failed >"$out/$system.result"
        failed=$((failed + 1))
    fi
    echo "== $system: $(cat "$out/$system.result"), $((SECONDS - begin)) s"
done
echo "systems: $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
