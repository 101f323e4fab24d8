#!/usr/bin/env bash
# Debian packages of this machine: libweft0, libweft-dev, python3-libweft and weft-tools, from a tarball of tools/dist.sh for
# glibc 2.28, so that the same files go onto Debian 11 and later and Ubuntu 22.04 and later. Crates come from the user's cargo,
# as for the tarball: docs/building.md says how to vendor them.
#     tools/deb.sh FOLDER
# Needs cargo-zigbuild, gcc, Python.h and dpkg-deb. The same commit gives the same bytes: times are SOURCE_DATE_EPOCH, or the last
# commit's. DEBFULLNAME and DEBEMAIL are the maintainer; without them, the last commit's author is.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:?where to?}"
into=$(realpath "$1")
umask 022
of_commit() { git log -1 --format="$1"; }
maintainer="${DEBFULLNAME:-$(of_commit %an)} <${DEBEMAIL:-$(of_commit %ae)}>"
glibc=2.28
machine=$(dpkg --print-architecture)
libdir=usr/lib/$(gcc -print-multiarch)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

rm -f "$into"/{libweft0,libweft-dev,python3-libweft,weft-tools}_*_"$machine".deb
TOOLS=1 WEFT_CMAKE_FLAGS="-DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_INSTALL_LIBDIR=${libdir#usr/}" tools/dist.sh "$scratch" $glibc
# After the build: cargo compiles ring, and what depends on it, again when this variable changes.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(of_commit %ct)} DPKG_DEB_THREADS_MAX=1
tar -C "$scratch" -xf "$scratch"/weft-*.tar.xz
made=$(echo "$scratch"/weft-*-linux)
version=${made##*/weft-}
version=${version%%-*}

# What all of them say of themselves.
describe() { # package, section, depends, further fields, description
    local root=$scratch/$1
    mkdir -p "$root/DEBIAN" "$root/usr/share/doc/$1"
    cat >"$root/usr/share/doc/$1/copyright" <<EOT
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Weft
Comment: What is linked into the programs and libraries is listed in THIRD_PARTY.gz and, of Rust's own library, in
 rust-library.html.gz, of libweft0 and weft-tools.

Files: *
$(sed -n 's/^Copyright (c)/Copyright:/p' LICENSE-MIT)
License: Apache-2.0 or MIT

License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.

License: MIT
$(sed '1,/^Copyright/d; /^$/s//./; s/^/ /' LICENSE-MIT)
EOT
    gzip -9n >"$root/usr/share/doc/$1/changelog.gz" <<EOT
weft ($version) unstable; urgency=medium

  * Weft $version: NEWS.gz of libweft0 and weft-tools says what is new.

 -- $maintainer  $(LC_ALL=C date -uRd "@$SOURCE_DATE_EPOCH")
EOT
    case $1 in
        libweft0 | weft-tools)
            gzip -9nc CHANGELOG.md >"$root/usr/share/doc/$1/NEWS.gz"
            gzip -9nc "$made/share/doc/weft/THIRD_PARTY" >"$root/usr/share/doc/$1/THIRD_PARTY.gz"
            gzip -9nc "$made/share/doc/weft/COPYRIGHT-library.html" >"$root/usr/share/doc/$1/rust-library.html.gz" ;;
    esac
    cat >"$root/DEBIAN/control" <<EOT
Package: $1
Source: weft
Version: $version
Architecture: $machine
Maintainer: $maintainer
Installed-Size: $(find "$root/usr" -printf '%y %s\n' | awk '{ n += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print n }')
Depends: $3
Section: $2
Priority: optional
$4
Description: $5
EOT
    find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    dpkg-deb -Zxz --root-owner-group --build "$root" "$into/$1_${version}_$machine.deb" >/dev/null
    echo "$into/$1_${version}_$machine.deb"
}

put() { # package, folder, files of the tarball
    mkdir -p "$scratch/$1/$2"
    cp -a "${@:3}" "$scratch/$1/$2/"
}

put libweft0 "$libdir" "$made/${libdir#usr/}"/libweft.so.0*
chmod 644 "$scratch/libweft0/$libdir"/libweft.so.*.* # as Debian has libraries
mkdir -p "$scratch/libweft0/DEBIAN"
echo "libweft 0 libweft0 (>= $version)" >"$scratch/libweft0/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$scratch/libweft0/DEBIAN/triggers"
describe libweft0 libs "libc6 (>= $glibc), libgcc-s1 (>= 3.0)" "Recommends: libfabric1" "moves memory between processes over every NIC of a machine
 Weft writes and reads pages of peers' memory over all NICs of a host at once,
 and notifies the caller, by polling, when the bytes have arrived. Over TCP
 sockets and shared memory it works by itself, over RDMA NICs on libfabric."

put libweft-dev usr "$made/include"
put libweft-dev "$libdir" "$made/${libdir#usr/}"/{libweft.so,cmake,pkgconfig}
describe libweft-dev libdevel "libweft0 (= $version)" "Multi-Arch: same
Suggests: pkg-config" "moves memory between processes over every NIC - headers
 Weft writes and reads pages of peers' memory over all NICs of a host at once.
 .
 This has the headers for C and C++, the CMake package and weft.pc."

packages=usr/lib/python3/dist-packages
mkdir -p "$scratch/python3-libweft/$packages/libweft-$version.dist-info" "$scratch/python3-libweft/DEBIAN"
git ls-files -z python/src/libweft | (cd python/src && sed -z 's,^python/src/,,' | tar --null -T - -cf -) |
    tar -C "$scratch/python3-libweft/$packages" --mode=go=rX,u+rwX -xf -
native=$scratch/python3-libweft/$packages/libweft/_native.abi3.so
python3 python/build_native.py "$made/include" "$native"
tools/glibc.sh "$native" $glibc >/dev/null
printf 'Metadata-Version: 2.1\nName: libweft\nVersion: %s\n' "$version" \
    >"$scratch/python3-libweft/$packages/libweft-$version.dist-info/METADATA"
# shellcheck disable=SC2016 # for the shell of dpkg
printf '#!/bin/sh\nset -e\n[ "$1" != configure ] || py3compile -p python3-libweft\n' >"$scratch/python3-libweft/DEBIAN/postinst"
printf '#!/bin/sh\nset -e\npy3clean -p python3-libweft\n' >"$scratch/python3-libweft/DEBIAN/prerm"
chmod 755 "$scratch/python3-libweft/DEBIAN"/*
describe python3-libweft python "libweft0 (= $version), libc6 (>= $glibc), python3 (>= 3.9)" "Suggests: python3-numpy" \
    "moves memory between processes over every NIC - Python 3
 Weft writes and reads pages of peers' memory over all NICs of a host at once.
 .
 This is the Python package libweft."

put weft-tools usr/bin "$made/bin/weft-bench"
put weft-tools usr/share/man/man1 "$made/share/man/man1/weft-bench.1"
gzip -9n "$scratch/weft-tools/usr/share/man/man1/weft-bench.1"
describe weft-tools net "libc6 (>= $glibc), libgcc-s1 (>= 3.0)" "Recommends: libfabric1" "measures Weft, which moves memory between processes
 weft-bench measures Weft between two hosts or two processes, draws the NICs of
 a machine and what Weft makes of them, and looks at processes that use it. It
 needs no other package of Weft."
