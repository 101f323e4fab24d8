#!/usr/bin/env bash
# Makes target/nixl-gpu: all that a machine with two GPUs needs to measure the WEFT backend of NIXL beside UCX there,
# from the memory of one GPU to that of the other. It needs a Python with torch and numpy, and CUDA's driver.
#     tools/nixl-gpu.sh PLUGIN LIBRARY_FOLDER [PYTHON]      PYTHON: the version over there, 3.12
set -euo pipefail
cd "$(dirname "$0")/.."
plugin=$(realpath "${1:?where is libplugin_WEFT.so?}")
library=$(realpath "${2:?where is libweft.so?}")/libweft.so
python=${3:-3.12}
to=target/nixl-gpu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# shellcheck source=tools/nixl-wheels.sh
. tools/nixl-wheels.sh
environment 1.4.1

wheel() { # name
    target/nixl/1.4.1/bin/pip download -q --no-deps --disable-pip-version-check --only-binary=:all: --python-version "$python" \
        --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 -d "$scratch" "$1"
    python3 -m zipfile -e "$scratch/${1%%==*}"*.whl "$scratch/all"
    rm "$scratch"/*.whl
}
wheel nixl_cu12==1.4.1
wheel nvidia_cuda_runtime_cu12==12.9.79

# Of the wheel's 120 MB, what NIXL and its UCX backend load, with UCX's own modules for CUDA and for one host.
rm -rf "$to"
mkdir -p "$to/site/nixl_cu12.libs/ucx" "$to/site/.nixl_cu12.mesonpy.libs/plugins"
cp -r "$scratch/all/nixl_cu12" "$to/site/"
cp "$scratch/all/.nixl_cu12.mesonpy.libs/plugins/libplugin_UCX.so" "$to/site/.nixl_cu12.mesonpy.libs/plugins/"
cp "$scratch"/all/nixl_cu12.libs/ucx/lib{uct,ucm}_c{uda,ma}.so* "$to/site/nixl_cu12.libs/ucx/" 2>/dev/null || true
for ((more = 1; more;)); do
    more=0
    for name in $(find "$to/site" -name '*.so*' -exec readelf -d {} + | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u); do
        for folder in nixl_cu12.libs .nixl_cu12.mesonpy.libs; do
            [ -e "$scratch/all/$folder/$name" ] && [ ! -e "$to/site/$folder/$name" ] || continue
            cp "$scratch/all/$folder/$name" "$to/site/$folder/"
            more=1
        done
    done
done
cp "$scratch"/all/nvidia/cuda_runtime/lib/libcudart.so.12 "$to/site/nixl_cu12.libs/"
cp "$plugin" "$to/site/.nixl_cu12.mesonpy.libs/plugins/"
cp "$library" "$to/site/.nixl_cu12.mesonpy.libs/plugins/libweft.so.0"
find "$to/site" \( -name 'libplugin_WEFT.so' -o -name 'libweft.so.0' \) -exec strip -g {} +
cp integrations/nixl/tests/{measure,support}.py "$to/"
cat >"$to/run.sh" <<'END'
#!/usr/bin/env bash
# On a machine with two GPUs:  ./run.sh [ROUNDS] [JSON]
cd "$(dirname "$0")"
export NIXL_MEMORY=VRAM PYTHONPATH=$PWD/site NIXL_PLUGIN_DIR=$PWD/site/.nixl_cu12.mesonpy.libs/plugins
export NIXL_LOG_LEVEL=${NIXL_LOG_LEVEL:-ERROR} PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH=$PWD/site/nixl_cu12.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec python3 measure.py "${1:-3}" "${2:-nixl-vram.json}"
END
chmod +x "$to/run.sh"
du -sh "$to" | cut -f 1 | sed 's|$| in target/nixl-gpu; on a machine with two GPUs: ./run.sh [ROUNDS] [JSON]|'
