#!/usr/bin/env bash
# The library for 64-bit Arm: built here, and a part of the C and C++ tests run with it under qemu-user, over host and a
# simulated NIC. One line for each test, and a last one with the count.
#     tools/test-aarch64.sh [FILTER]     FILTER: a part of the names of the tests to run
# It needs Debian's gcc-aarch64-linux-gnu, g++-aarch64-linux-gnu and qemu-user, and the Rust target.
set -uo pipefail
cd "$(dirname "$0")/.."
filter=${1:-}
triple=aarch64-unknown-linux-gnu
cargo=${CARGO:-cargo}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$target/test-aarch64
limit=$((60 * ${WEFT_TEST_PATIENCE:-4})) # an emulated machine is a slow one
jobs=${WEFT_TEST_JOBS:-$((($(nproc) + 1) / 2))}
# What an emulator cannot do: load a libfabric for Arm that is not there, keep to milliseconds, start no thread of its own.
not_here=(errors.unknown_fabric_is_named errors.named_fabric_is_never_replaced errors.unmatched_rail_patterns_are_refused
    lifecycle.failed_opens_leak_nothing waiting.wait_keeps_its_timeout waiting.manual_wait_keeps_its_timeout)
programs=(errors lifecycle messages counters atomics lists prepared waiting fences secret)
export WEFT_TEST_PATIENCE=${WEFT_TEST_PATIENCE:-4}

for tool in aarch64-linux-gnu-gcc aarch64-linux-gnu-g++ qemu-aarch64; do
    command -v $tool >/dev/null && continue
    echo "$tool is missing: apt-get install gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user" >&2
    exit 1
done
if ! [ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ]; then
    echo "Rust's library for it is missing: rustup target add $triple" >&2
    exit 1
fi

mkdir -p "$out"
rm -f "$out"/*.log "$out"/*.result
# shellcheck disable=SC2086 # flags are words
CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
    "$cargo" build --release ${CARGO_FLAGS:-} -p weft-simulated --target $triple --target-dir "$target" || exit 1
ln -sf "$target/$triple/release/libweft_simulated.so" "$out/libweft.so.0"

machine=(qemu-aarch64 -L /usr/aarch64-linux-gnu -E "LD_LIBRARY_PATH=$out")
for program in "${programs[@]}"; do
    aarch64-linux-gnu-gcc -std=c11 -D_GNU_SOURCE -O1 -Iinclude -Iffi-tests/harness ffi-tests/*/"$program.c" ffi-tests/harness/harness.c \
        -o "$out/$program" "$out/libweft.so.0" -lpthread || exit 1
done
aarch64-linux-gnu-g++ -std=c++17 -O1 -Iinclude -Iffi-tests/harness ffi-tests/api/weft_hpp.cpp \
    -o "$out/weft_hpp" "$out/libweft.so.0" -lpthread || exit 1

run_one() { # name, fabric, program, test
    local status=0
    WEFT_TEST_FABRIC=$2 timeout -k 5 "$limit" "${machine[@]}" "$out/$3" "$4" >"$out/$1.log" 2>&1 </dev/null || status=$?
    case $status in
        0) echo passed >"$out/$1.result"; echo "$1: ok" ;;
        77) echo skipped >"$out/$1.result"; echo "$1: skipped: $(sed -n 's/^SKIPPED: //p' "$out/$1.log")" ;;
        *)
            echo failed >"$out/$1.result"
            printf '%s\n%s\n' "$1: FAILED: status $status" "$(tail -n 20 "$out/$1.log" | sed 's/^/    | /')" ;;
    esac
}

for program in "${programs[@]}" weft_hpp; do
    while read -r test where _; do
        for fabric in host sim:like=efa; do
            name=$program.$test.$fabric
            [[ $name == *"$filter"* && " ${not_here[*]} " != *" $program.$test "* ]] || continue
            case $where in
                once) [ $fabric = host ] || continue ;;
                any) ;;
                *) [[ ",$where," == *",$fabric,"* ]] || continue ;;
            esac
            while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
            run_one "$name" $fabric "$program" "$test" &
        done
    done < <("${machine[@]}" "$out/$program" --list)
done
wait
count() { cat "$out"/*.result 2>/dev/null | grep -c "^$1\$"; }
echo "$(count passed) passed, $(count failed) failed, $(count skipped) skipped"
[ "$(count failed)" = 0 ] && [ "$(count passed)" -gt 0 ]
