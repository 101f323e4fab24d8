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
# shellcheck source=tools/nixl-wheels.sh
. tools/nixl-wheels.sh

rm -rf "$to"
slim_wheel 1.4.1 "$python" "$to/site"
cp "$plugin" "$to/site/.nixl_cu12.mesonpy.libs/plugins/"
cp "$library" "$to/site/.nixl_cu12.mesonpy.libs/plugins/libweft.so.0"
find "$to/site" \( -name 'libplugin_WEFT.so' -o -name 'libweft.so.0' \) -exec strip -g {} +
cp integrations/nixl/tests/{measure,support}.py tools/compare/{pair,side,engines}.py "$to/"
python3 python/build_native.py
cp -r python/src/libweft "$to/"
cat >"$to/run.sh" <<'END'
#!/usr/bin/env bash
# On a machine with two GPUs:  ./run.sh [ROUNDS] [JSON]
cd "$(dirname "$0")"
export NIXL_MEMORY=VRAM PYTHONPATH=$PWD/site NIXL_PLUGIN_DIR=$PWD/site/.nixl_cu12.mesonpy.libs/plugins
export WEFT_LIBRARY=$NIXL_PLUGIN_DIR/libweft.so.0 NIXL_LOG_LEVEL=${NIXL_LOG_LEVEL:-ERROR} PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH=$PWD/site/nixl_cu12.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec python3 measure.py "${1:-3}" "${2:-nixl-vram.json}"
END
chmod +x "$to/run.sh"
du -sh "$to" | cut -f 1 | sed 's|$| in target/nixl-gpu; on a machine with two GPUs: ./run.sh [ROUNDS] [JSON]|'
