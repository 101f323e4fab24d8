#!/usr/bin/env bash
# The Debian packages of target/deb: without a complaint of lintian's, and installed, used and removed in clean roots of Debian
# and Ubuntu (target/distros, kept; what is installed there is not). tools/reproducible.sh compares two builds of them.
#     tools/test-deb.sh [SUITE...]     trixie bookworm bullseye noble jammy
# Needs root, debootstrap and lintian. Leaves in target/figures: deb_roots_passed.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- trixie bookworm bullseye noble jammy
debs=$PWD/target/deb
# shellcheck source=tools/cases.sh
. tools/cases.sh
# shellcheck source=tools/roots.sh
. tools/roots.sh

clean() { lintian --fail-on error,warning --tag-display-limit 0 "$debs"/*.deb; }

# What is done in a root, of which only a copy is written to.
cat >"$roots/use-deb.sh" <<'EOT'
set -eu
export DEBIAN_FRONTEND=noninteractive PYTHONDONTWRITEBYTECODE=1
cd /tmp
find / -xdev -not -path "/var/cache/*" | sort >before
apt-get install -y -q --no-install-recommends "$1"/*.deb
cc "$2/examples-c/hello.c" $(pkg-config --cflags --libs weft) -o hello
[ "$(./hello)" = "Hello from the other endpoint." ]
ldd hello | grep -q 'libweft.so.0 => /lib/\|libweft.so.0 => /usr/lib/'
WEFT_TEST_FABRIC=tcp WEFT_LOG=error python3 -m unittest discover -s "$2/python/tests" -p 'test_transfers.py'
python3 -c 'import libweft._hot as hot; assert hot.native'
python3 -c 'import importlib.metadata as of, libweft; assert of.version("libweft") == libweft.__version__'
[ "$(weft-bench --version)" = "weft-bench $3" ]
weft-bench loopback --provider tcp --rail-names lo --seconds 0.5 --verify
weft-bench topo
man weft-bench | cat >page && grep -q 'connect HOST:PORT' page
apt-get purge -y -q libweft0 libweft-dev python3-libweft weft-tools
rm hello page
find / -xdev -not -path "/var/cache/*" | sort >after
! diff before after | grep -i weft
EOT

used_in() { # root
    unshare -m bash -ec '
        mount -t tmpfs none /mnt
        mkdir /mnt/written /mnt/work /mnt/root
        mount -t overlay -o "lowerdir=$1,upperdir=/mnt/written,workdir=/mnt/work" none /mnt/root
        for folder in /proc /sys /dev; do mount --rbind "$folder" "/mnt/root$folder"; done
        for folder in "$2" "$3"; do mkdir -p "/mnt/root$folder"; mount --bind "$folder" "/mnt/root$folder"; done
        cp "$1/../use-deb.sh" /mnt/root/tmp/
        exec chroot /mnt/root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin bash /tmp/use-deb.sh "$2" "$3" "$4"' \
        used_in "$roots/$1" "$debs" "$PWD" "$version"
}

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
check "packages: lintian" clean
before=$passed
for suite; do
    if ! may_chroot; then
        skip "packages: $suite" "only root can be in another one"
    elif ! make_root "deb-$suite" "$suite" gcc,libc6-dev,pkg-config,python3,man-db; then
        skip "packages: $suite" "the root could not be made"
    else
        check "packages: $suite" used_in "deb-$suite"
    fi
done
mkdir -p target/figures
echo "deb_roots_passed: $(tee target/figures/deb_roots_passed <<<$((passed - before)))"
counted
