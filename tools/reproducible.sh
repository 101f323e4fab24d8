#!/usr/bin/env bash
# Whether two builds of the last commit, in different folders, give the same tarball, module of Python and, where there is
# dpkg-deb, Debian packages: one in target, one in a clone that is removed afterwards. With cargo-zigbuild, as the wheels.
# Leaves in target/figures: reproducible, 1 or 0.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -z "$(git status --porcelain)" ] || { echo "commit first: it is the last commit that is built elsewhere" >&2; exit 1; }
PATH=$PWD/target/wheels/env/bin:$PATH # which make wheels fills
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
build() { # sources, where to
    cd "$1"
    TOOLS=1 tools/dist.sh "$2" 2.28
    ! command -v dpkg-deb >/dev/null || tools/deb.sh "$2"
    python3 python/build_native.py include "$2/_native.abi3.so"
}

git clone -q . "$scratch/another folder"
(build . "$scratch/here")
(CARGO_TARGET_DIR=$scratch/target && export CARGO_TARGET_DIR && build "$scratch/another folder" "$scratch/there")
same=0
(cd "$scratch/here" && sha256sum -- *) | tee "$scratch/sums"
(cd "$scratch/there" && sha256sum -c "$scratch/sums") && same=1
mkdir -p target/figures
echo "reproducible: $(tee target/figures/reproducible <<<$same)"
[ $same = 1 ]
