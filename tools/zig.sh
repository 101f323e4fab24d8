#!/usr/bin/env bash
# Fills target/wheels/env with what links for an old glibc and packs wheels: cargo-zigbuild, zig, hatchling, auditwheel.
set -euo pipefail
cd "$(dirname "$0")/.."
env=$PWD/target/wheels/env
[ -x "$env/bin/pip" ] || python3 -m venv "$env"
"$env/bin/python" -c 'import auditwheel, hatchling, elftools, ziglang' 2>/dev/null && [ -x "$env/bin/cargo-zigbuild" ] ||
    "$env/bin/pip" install -q auditwheel hatchling pyelftools ziglang cargo-zigbuild
ln -sf "$(echo "$env"/lib/python3*/site-packages/ziglang/zig)" "$env/bin/zig" # also where another Python comes first
