#!/usr/bin/env bash
# Which lines of src/ no test reaches: the Rust tests and the C tests together, by LLVM's source-based coverage.
#     tools/coverage.sh [FILTER]        FILTER is that of ffi-tests/run
# target/coverage/untested lists them, as FILE:FIRST-LAST and the number of lines; the last line printed is the figure
# src_lines_untested, in per cent. Lines are those that have code; tests in src/ do not count.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/target/coverage
llvm=$(rustc --version --verbose | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
profdata=llvm-profdata-$llvm cov=llvm-cov-$llvm
if ! command -v "$profdata" >/dev/null; then
    bin=$(rustc --print sysroot)/lib/rustlib/$(rustc --version --verbose | sed -n 's/^host: //p')/bin
    profdata=$bin/llvm-profdata cov=$bin/llvm-cov
fi
command -v "$profdata" >/dev/null || {
    echo "coverage: skipped: LLVM $llvm's tools are missing: apt-get install llvm-$llvm, or rustup component add llvm-tools"
    exit 77
}

# Counters are mapped from the files, so that those of killed processes are included.
export RUSTFLAGS="-Cinstrument-coverage -Cllvm-args=-runtime-counter-relocation --cfg coverage" CARGO_TARGET_DIR=$out
export LLVM_PROFILE_FILE=$out/profiles/%m%c.profraw
rm -rf "$out/profiles"
cargo=${CARGO:-cargo}
"$cargo" build ${CARGO_FLAGS:-} -p weft-simulated
"$cargo" test ${CARGO_FLAGS:-} -p weft --no-fail-fast || echo "coverage: some Rust tests failed"
WEFT_TEST_SIMULATED=1 WEFT_TEST_OUT=$out/ffi-tests WEFT_TEST_PATIENCE=${WEFT_TEST_PATIENCE:-3} ffi-tests/run "$out/debug" "${1:-}" >"$out/tests.txt" ||
    echo "coverage: some C tests failed: $out/tests.txt"
tail -n 1 "$out/tests.txt"

"$profdata" merge -sparse "$out"/profiles/*.profraw -o "$out/all.profdata"
tests=$(find "$out"/debug/deps -maxdepth 1 -name 'weft-*' -perm -100 -type f -newer "$out/debug/libweft_simulated.d" | head -n 1)
"$cov" export --format=lcov --instr-profile="$out/all.profdata" "$out/debug/libweft_simulated.so" ${tests:+--object "$tests"} \
    --sources src >"$out/lcov.info" 2>/dev/null
awk -F '[:,]' -v root="$PWD/" -v list="$out/untested.all" '
    function flush() { if (first) { print file ":" first "-" last, count >list; first = 0; count = 0 } }
    $1 == "SF" { flush(); file = substr($0, 4); sub(root, "", file); skip = file ~ /(tests?\.rs$|\/fuzzing\/|\/tests\/)/ }
    $1 == "DA" && !skip { lines++
        if ($3 == 0) { none++; if (!first) first = $2; last = $2; count++ } else flush() }
    END { flush(); printf "src_lines_untested %.1f (%d of %d)\n", 100 * none / lines, none, lines }' "$out/lcov.info" >"$out/figure"
sort -k 2,2 -rn "$out/untested.all" >"$out/untested"
rm "$out/untested.all"
mkdir -p target/figures
sed 's/^[^ ]* \([0-9.]*\).*/\1/' "$out/figure" >target/figures/src_lines_untested
echo "$out/untested lists them, the longest runs first:"
head -n 20 "$out/untested"
cat "$out/figure"
