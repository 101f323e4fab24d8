#!/usr/bin/env bash
# On a machine with GPUs, from the bundle that `make gpu-test` made: runs the tests of GPU memory and measures it.
#     ./run.sh [all|tests|figures] [FILTER]
#     ./run.sh files [GIB]                  a peer's file and GPU memory, beside cuFile; then checkpoints beside PyTorch's files
#     ./run.sh compare ["FABRIC..."]        beside NIXL, in ROUNDS=5 turns: tables, JSON and charts in target (nvlink and staged; or host and tcp)
set -uo pipefail
cd "$(dirname "$0")"
what=${1:-all} filter=${2:-}
ldconfig -p 2>/dev/null | grep -q libcuda.so.1 || ls /usr/local/nvidia/lib*/libcuda.so.1 >/dev/null 2>&1 ||
    { echo "SKIPPED: no CUDA driver here"; exit 77; }
# By the bundle's libfabric.
with_fabric() { LD_LIBRARY_PATH=$PWD/fabric${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"; }
own=()
ldconfig -p | grep -q 'libfabric\.so\.1' || own=(with_fabric)
passed=0 failed=0 skipped=0

run() { # name, command...
    local name=$1 log status
    shift
    [[ $name == *"$filter"* ]] || return 0
    log=$("$@" 2>&1)
    status=$?
    case $status in
    0) passed=$((passed + 1)); echo "$name: ok" ;;
    77) skipped=$((skipped + 1)); echo "$name: skipped: $(sed -n 's/^SKIPPED: //p' <<<"$log" | head -n 1)" ;;
    *) failed=$((failed + 1)); echo "$name: FAILED: status $status"; tail -n 12 <<<"$log" | cut -c 1-300 | sed 's/^/    | /' ;;
    esac
}

# run_program PROGRAM FABRIC
run_program() {
    local name where
    while read -r name where _; do
        [[ $where == any || ",$where," == *",$2,"* ]] || continue
        WEFT_TEST_FABRIC=$2 run "$1.$name.$2" "${own[@]}" timeout -k 5 90 "tests/$1" "$name"
    done < <("${own[@]}" "tests/$1" --list)
}

if [ "$what" = compare ]; then
    [ -e nixl.tar.gz ] || { echo "SKIPPED: the bundle was made without NIXL's wheel"; exit 77; }
    [ -d nixl ] || { mkdir nixl && tar -C nixl -xzf nixl.tar.gz; }
    rm -rf target/compare
    mkdir -p target/compare
    cp limits/limits target/compare/
    export WEFT_LIBRARY=$PWD/lib/libweft.so.0 PYTHONPATH=$PWD/python:$PWD/nixl NIXL_LOG_LEVEL=ERROR NIXL_BACKEND=UCX
    export LD_LIBRARY_PATH=$PWD/nixl/nixl_cu12.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    for fabric in ${filter:-nvlink staged}; do
        case $fabric in host | tcp) export CUDA_VISIBLE_DEVICES= ;; esac # for UCX_TLS without CUDA
        "${own[@]}" python3 tools/compare/compare.py limits "$fabric" || exit 1
        for ((round = 0; round < ${ROUNDS:-5}; round++)); do
            "${own[@]}" python3 tools/compare/compare.py round "$fabric" "$round" || exit 1
        done
    done
    "${own[@]}" python3 tools/compare/compare.py report
    exit
fi

if [ "$what" = files ]; then
    export WEFT_LIBRARY=$PWD/lib/libweft.so.0 PYTHONPATH=$PWD/python
    "${own[@]}" python3 python/tests/gpu_files.py "${filter:-2}" || exit 1
    for fabric in host tcp; do
        echo "checkpoints over $fabric:"
        "${own[@]}" python3 -W ignore python/tests/checkpoint_figures.py "${filter:-2}" 3 "$fabric" || exit 1
    done
    exit
fi

if [ "$what" != figures ]; then
    export WEFT_TEST_DEVICES=cuda
    for fabric in host tcp; do
        for program in device device_kinds watches; do
            run_program "$program" "$fabric"
        done
    done
    run gpu_pages "${own[@]}" timeout -k 5 90 tests/gpu_pages
    if python3 -c 'import torch' 2>/dev/null; then
        export WEFT_LIBRARY=$PWD/lib/libweft.so.0 PYTHONPATH=$PWD/python
        # PyTorch's allocators: cudaMalloc, the virtual memory API, and CUDA's pools.
        for allocator in backend:native expandable_segments:True backend:cudaMallocAsync; do
            PYTORCH_CUDA_ALLOC_CONF=$allocator run "gpu_pages.py.$allocator" "${own[@]}" timeout -k 5 90 \
                python3 tests/gpu_pages.py
        done
        for fabric in host tcp; do
            WEFT_TEST_FABRIC=$fabric run "gpu_kernels.py.$fabric" "${own[@]}" timeout -k 5 90 python3 python/tests/gpu_kernels.py
        done
    fi
    unset WEFT_TEST_DEVICES
    echo "$passed passed, $failed failed, $skipped skipped"
fi
if [ "$what" != tests ]; then
    "${own[@]}" tests/gpu_figures gpu-figures.json
fi
[ "$failed" = 0 ]
