#!/usr/bin/env bash
# The WEFT backend of NIXL beside UCX and LIBFABRIC in NIXL's wheel: a table, and target/nixl/figures.json.
#     tools/nixl-figures.sh PLUGIN LIBRARY_FOLDER [ROUNDS]
# Then ghost writes: what lands in pages that are used again after a transfer was released half-way, of these and of
# Mooncake. What cannot be had here is left out, with a line.
set -euo pipefail
cd "$(dirname "$0")/.."
plugin=$(realpath "${1:?where is libplugin_WEFT.so?}")
library=$(realpath "${2:?where is libweft.so?}")
# shellcheck source=tools/nixl-wheels.sh
. tools/nixl-wheels.sh
environment 1.4.1
# Beside the wheel's own, which find their libraries from where they are.
folder=$(echo target/nixl/1.4.1/lib/python3*/site-packages/.nixl_cu12.mesonpy.libs/plugins)
cp "$plugin" "$folder/"
cp "$library/libweft.so" "$folder/libweft.so.0"
NIXL_PLUGIN_DIR=$(realpath "$folder")
export NIXL_PLUGIN_DIR NIXL_LOG_LEVEL=ERROR PYTHONDONTWRITEBYTECODE=1
if why=$(tools/nixl-libfabric.sh make); then
    export NIXL_LIBFABRIC=$PWD/tools/nixl-libfabric.sh
else
    echo "LIBFABRIC is left out: $why"
fi
if why=$(mooncake 1.4.1 2>&1); then
    export MOONCAKE=$PWD/target/nixl/1.4.1/bin/python
else
    echo "Mooncake is left out: $(tail -n 1 <<<"$why")"
fi
target/nixl/1.4.1/bin/python integrations/nixl/tests/measure.py "${3:-3}" target/nixl/figures.json
target/nixl/1.4.1/bin/python integrations/nixl/tests/ghost.py 8
