#!/usr/bin/env bash
# libweft.checkpoint as storage of torch.distributed.checkpoint: its tests, or figures beside PyTorch's own files.
#     tools/test-dcp.sh LIBRARY_FOLDER [figures GB ROUNDS]
# torch goes into target/torch, without CUDA (tools/torch-slim.py); without a registry all is skipped, with a line.
set -uo pipefail
cd "$(dirname "$0")/.."
library=$(realpath "${1:?where is libweft.so?}")/libweft.so
shift
venv=$PWD/target/torch
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck source=tools/cases.sh
. tools/cases.sh
export WEFT_LIBRARY=$library PYTHONPATH=$PWD/python/src PYTHONDONTWRITEBYTECODE=1

installed() {
    "$venv/bin/python" -c 'import torch, numpy' 2>/dev/null && return
    { [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"; } &&
        timeout 900 "$venv/bin/pip" install -q --no-cache-dir --no-deps torch==2.13.0 &&
        timeout 300 "$venv/bin/pip" install -q numpy typing_extensions sympy networkx jinja2 fsspec filelock setuptools &&
        "$venv/bin/python" tools/torch-slim.py && "$venv/bin/python" -c 'import torch'
}

if ! installed >"$log" 2>&1; then
    skip "torch.distributed.checkpoint" "torch cannot be installed ($(tail -n 1 "$log"))"
elif [ "${1:-}" = figures ]; then
    "$venv/bin/pip" install -q --no-deps safetensors runai-model-streamer humanize || echo "Others are not there to be compared with."
    "$venv/bin/python" -W ignore python/tests/checkpoint_figures.py "${@:2}"
    exit
else
    check "torch.distributed.checkpoint over stores" timeout 600 "$venv/bin/python" -W ignore python/tests/dcp_roundtrip.py
fi
counted
