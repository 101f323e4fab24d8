#!/usr/bin/env bash
# Whether two builds of the last commit, in different folders, give the same tarball and the same module of Python: one in target,
# one in a clone that is removed afterwards. With cargo-zigbuild, as the wheels. Leaves in target/figures: reproducible, 1 or 0.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -z "$(git status --porcelain)" ] || { echo "commit first: it is the last commit that is built elsewhere" >&2; exit 1; }
PATH=$PWD/target/wheels/env/bin:$PATH # which make wheels fills
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
git clone -q . "$scratch/another folder"
TOOLS=1 tools/dist.sh "$scratch/here" 2.28
(cd "$scratch/another folder" && CARGO_TARGET_DIR=$scratch/target TOOLS=1 tools/dist.sh "$scratch/there" 2.28)
python3 python/build_native.py include "$scratch/here/_native.abi3.so"
python3 "$scratch/another folder/python/build_native.py" "$scratch/another folder/include" "$scratch/there/_native.abi3.so"
sha256sum "$scratch"/*/weft-*.tar.xz "$scratch"/*/_native.abi3.so
same=0
cmp "$scratch"/here/weft-*.tar.xz "$scratch"/there/weft-*.tar.xz &&
    cmp "$scratch"/here/_native.abi3.so "$scratch"/there/_native.abi3.so && same=1
mkdir -p target/figures
echo "reproducible: $(tee target/figures/reproducible <<<$same)"
[ $same = 1 ]
