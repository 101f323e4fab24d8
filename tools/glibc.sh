#!/usr/bin/env bash
# The newest version of glibc that a library needs: tools/glibc.sh LIBRARY [AT_MOST]; status 1 if that is too new.
set -euo pipefail
newest=$(readelf -V "${1:?which library?}" | sed -n 's/.*Name: GLIBC_\([0-9.]*\) .*/\1/p' | sort -uV | tail -n 1)
echo "${newest:?}"
[ -z "${2:-}" ] || [ "$(printf '%s\n%s\n' "$newest" "$2" | sort -V | tail -n 1)" = "$2" ] ||
    { echo "$1 needs glibc $newest, which is newer than $2"; exit 1; }
