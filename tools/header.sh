#!/usr/bin/env bash
# Makes the public header from src/capi, of it docs/reference.md and what Python knows, and of that docs/python.md:  tools/header.sh write | check
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p target
# A new name each time: cargo runs the build script again when the variable has changed.
made=$(mktemp "$PWD/target/weft-XXXXXX.h")
trap 'rm -f "$made"' EXIT
# shellcheck disable=SC2086 # flags are words
WEFT_HEADER_OUT=$made "${CARGO:-cargo}" check ${CARGO_FLAGS:-} -p weft --features header
case ${1:-} in
    write)
        cp "$made" include/weft.h
        tools/bindings.py write
        tools/reference.py write
        tools/python-reference.py write
        ;;
    check)
        if ! diff -u include/weft.h "$made"; then
            echo "include/weft.h is not what src/capi makes: run make header" >&2
            exit 1
        fi
        echo "include/weft.h is what src/capi makes."
        if command -v "${CXX:-c++}" >/dev/null; then
            "${CXX:-c++}" -std=c++17 -fsyntax-only -Iinclude ffi-tests/api/layout.cpp
            echo "include/weft.h has the layout that programs were built with."
        fi
        tools/bindings.py check
        tools/reference.py check
        tools/python-reference.py check
        ;;
    *)
        echo "tools/header.sh write | check" >&2
        exit 2
        ;;
esac
