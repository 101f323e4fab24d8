#!/usr/bin/env bash
# On a machine with GPUs, from the bundle that `make gpu-test` made: runs the tests of GPU memory and measures it.
#     ./run.sh [all|tests|figures] [FILTER]
set -uo pipefail
cd "$(dirname "$0")"
what=${1:-all} filter=${2:-}
ldconfig -p 2>/dev/null | grep -q libcuda.so.1 || ls /usr/local/nvidia/lib*/libcuda.so.1 >/dev/null 2>&1 ||
    { echo "SKIPPED: no CUDA driver here"; exit 77; }
if [ -f fabric/preferred ] || ! ldconfig -p | grep -q 'libfabric\.so\.1'; then
    export LD_LIBRARY_PATH=$PWD/fabric${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
passed=0 failed=0 skipped=0

run() { # name, command...
    local name=$1 log status
    shift
    [[ $name == *"$filter"* ]] || return 0
    log=$(timeout -k 5 90 "$@" 2>&1)
    status=$?
    case $status in
    0) passed=$((passed + 1)); echo "$name: ok" ;;
    77) skipped=$((skipped + 1)); echo "$name: skipped: $(sed -n 's/^SKIPPED: //p' <<<"$log" | head -n 1)" ;;
    *) failed=$((failed + 1)); echo "$name: FAILED: status $status"; tail -n 12 <<<"$log" | cut -c 1-300 | sed 's/^/    | /' ;;
    esac
}

if [ "$what" != figures ]; then
    export WEFT_TEST_DEVICES=cuda
    for program in device watches; do
        while read -r name where _; do
            for fabric in tcp host; do
                [[ $where == any || ",$where," == *",$fabric,"* ]] || continue
                WEFT_TEST_FABRIC=$fabric run "$name.$fabric" "tests/$program" "$name"
            done
        done < <("tests/$program" --list)
    done
    run gpu_pages tests/gpu_pages
    if python3 -c 'import torch' 2>/dev/null; then
        export WEFT_LIBRARY=$PWD/lib/libweft.so.0
        run gpu_pages.py.cudaMalloc python3 tests/gpu_pages.py
        # PyTorch's other allocators: the virtual memory API, and CUDA's pools.
        for allocator in expandable_segments:True backend:cudaMallocAsync; do
            PYTORCH_CUDA_ALLOC_CONF=$allocator run "gpu_pages.py.$allocator" python3 tests/gpu_pages.py
        done
    fi
    unset WEFT_TEST_DEVICES
    echo "$passed passed, $failed failed, $skipped skipped"
fi
[ "$what" = tests ] || tests/gpu_figures gpu-figures.json
[ "$failed" = 0 ]
