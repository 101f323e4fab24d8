#!/usr/bin/env bash
# Makes target/gpu-test: all that a machine with GPUs needs to test and measure GPU memory, without Rust.
#     tools/gpu-test.sh LIBRARY_FOLDER
# The bundle takes this machine's libfabric along, for where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
library=$(realpath "${1:?where is libweft.so?}")
to=target/gpu-test
rm -rf "$to"
mkdir -p "$to/lib" "$to/fabric" "$to/tests"
strip -g -o "$to/lib/libweft.so.0" "$library/libweft.so"
ln -s libweft.so.0 "$to/lib/libweft.so"
mkdir "$to/lib/simulated"
strip -g -o "$to/lib/simulated/libweft.so.0" "$library/libweft_simulated.so"

flags=(-std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Iinclude -Iffi-tests/harness "-Wl,-rpath,\$ORIGIN/../lib" -Wl,--allow-shlib-undefined)
for program in device device_kinds watches gpu_figures; do
    cc "${flags[@]}" "ffi-tests/device/$program.c" ffi-tests/harness/harness.c -o "$to/tests/$program" "$to/lib/libweft.so.0" -lpthread -ldl
done
# It is linked with CUDA's driver, which is not here, so a stub with its functions' names replaces it.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cc "${flags[@]}" -c examples-c/gpu_pages.c -o "$scratch/gpu_pages.o"
nm -u "$scratch/gpu_pages.o" | sed -n 's/.* \(cu[A-Z][A-Za-z0-9_]*\)$/void \1(void) {}/p' >"$scratch/cuda.c"
cc -shared -fPIC -Wl,-soname,libcuda.so.1 "$scratch/cuda.c" -o "$scratch/libcuda.so.1"
cc "${flags[@]}" "$scratch/gpu_pages.o" -o "$to/tests/gpu_pages" "$to/lib/libweft.so.0" "$scratch/libcuda.so.1"
cp examples-python/gpu_pages.py "$to/tests/"
mkdir -p "$to/python/tests"
cp python/tests/{gpu_files,gpu_kernels,support,checkpoint_figures}.py "$to/python/tests/"
python3 python/build_native.py
cp -r python/src/libweft "$to/python/"

# take_along LIBRARY FOLDER: with what it needs beside the C library.
take_along() {
    mkdir -p "$2"
    cp -L "$1" "$2/"
    ldd "$1" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' |
        { grep -vE '/(libc|libm|libdl|libpthread|librt|libgcc_s|ld-linux[^/]*)\.so' || true; } | xargs -r cp -L -t "$2/"
}
fabric=$(ldconfig -p | sed -n 's/.*libfabric\.so\.1 .*=> //p' | head -n 1)
[ -z "$fabric" ] || take_along "$fabric" "$to/fabric"

# NIXL beside it, if there is a registry.
# shellcheck source=tools/nixl-wheels.sh
. tools/nixl-wheels.sh
if slim_wheel 1.5.1 "${GPU_PYTHON:-3.12}" "$scratch/nixl"; then
    tar -C "$scratch/nixl" -czf "$to/nixl.tar.gz" .
    mkdir -p "$to/tools/compare" "$to/integrations/nixl/tests"
    cp tools/compare/*.py "$to/tools/compare/"
    cp integrations/nixl/tests/support.py "$to/integrations/nixl/tests/"
    mkdir -p "$to/limits"
    cc -std=c11 -O2 -Wall -Wextra tools/compare/limits.c -o "$to/limits/limits"
else
    echo "NIXL's wheel cannot be had: the bundle does not compare"
fi

cp tools/gpu-run.sh "$to/run.sh"
du -sh "$to" | cut -f 1 | sed 's|$| in target/gpu-test|'
cat <<'END'
Carry the folder to a machine with GPUs and run there:
    ./run.sh              tests, then figures
    ./run.sh tests        tests alone
    ./run.sh figures      figures alone; they are left in gpu-figures.json
    ./run.sh files        a peer's file and GPU memory, beside cuFile; checkpoints beside PyTorch's own files
    ./run.sh compare      beside NIXL, with two GPUs (ROUNDS=5; "nvlink" or "staged" for a half): target/compare-gpu.json;
                          "host tcp" instead, without GPUs, on 16 processors or more: target/compare-many.json
                          (python3 with torch and numpy; GPU_PYTHON names its version when the bundle is made, 3.12)
END
