#!/usr/bin/env bash
# Everything of a release that can be done here: what is to be published goes into target/release-VERSION, with the sums of
# all files, and the last commit gets a tag. Then it says what is left to a person. Nothing is pushed or uploaded.
#     tools/release.sh
# Before it: the version in Cargo.toml, `make header`, a heading "## [VERSION] - DATE" in CHANGELOG.md, all committed, and
# `make soak` (two hours). NO_TESTS=1 leaves .ci/run out, where it has just passed.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
into=target/release-$version
commit=$(git rev-parse HEAD)
machines=${MACHINES:-$(uname -m)}

missing=()
[ -z "$(git status --porcelain)" ] || missing+=("what is not committed: git status")
grep -qE "^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md || missing+=("a heading '## [$version] - DATE' in CHANGELOG.md")
grep -q "^VERSION: Final = \"$version\"$" python/src/libweft/c.py || missing+=("make header: the version of the header is another")
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || missing+=("another version: there is a tag v$version")
# Only a soak within its limits leaves this.
read -r sources hours 2>/dev/null <target/soak || sources=none hours=0
[ "$sources" = "$(tools/sources.sh)" ] && awk "BEGIN { exit !($hours >= 2) }" ||
    missing+=("make soak HOURS=2: the last that passed was of sources $sources, not $(tools/sources.sh), for $hours hours")
if [ ${#missing[@]} -gt 0 ]; then
    printf 'missing: %s\n' "${missing[@]}" >&2
    exit 1
fi

[ -n "${NO_TESTS:-}" ] || .ci/run
tools/crate.sh package # .ci/run has tested it, and the licences
rm -f target/{wheels,deb}/*"$version"*.{whl,deb} target/dist/weft-*.tar.xz # also of machines that are not built today
make wheels MACHINES="$machines"
make reproducible
make deb test-deb
tools/support.py
rm -rf "$into"
mkdir -p "$into"
cp target/wheels/libweft*-"$version"-*.whl target/deb/*_"$version"_*.deb target/dist/weft-"$version"-*.tar.xz target/crate/target/package/*.crate "$into/"
awk -v heading="## [$version]" 'index($0, heading) == 1 { on = 1; next } /^## / { on = 0 } on' CHANGELOG.md >"$into/NOTES.md"
(cd "$into" && sha256sum -- *.whl *.deb *.tar.xz *.crate >SHA256SUMS)
[ "$(git rev-parse HEAD)" = "$commit" ] || { echo "HEAD has moved: $commit was built" >&2; exit 1; }
git tag -a "v$version" -m "Weft $version"

cat <<EOT

$into has what is to be published:
$(ls "$into")

Left to a person:
  1. docs/support.md: git diff shows what the tests added; commit it.
  2. The other machine, unless MACHINES had both: the workflow "Release" builds its wheels and tarball from the tag.
  3. git push origin v$version
  4. A release on the repository's page, with NOTES.md and the files.
  5. twine upload *.whl, libweft before libweft-nixl; libweft-tools
  6. cargo publish -p weft-libfabric-sys, then -p libweft, in target/crate
  7. CHANGELOG.md: a new heading "## [Unreleased]".
EOT
