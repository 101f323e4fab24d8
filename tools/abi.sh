#!/usr/bin/env bash
# Keeps the ABI: docs/abi.md says what may change.
#     tools/abi.sh check LIBRARY_FOLDER    compares with what is kept in ffi-tests/api/abi, and runs the first program
#     tools/abi.sh write                   adds what include/weft.h has now to layout.h
# weft-0.2.h and weft-0.2.abi are those of 0.2.0: once CHANGELOG.md gives that version a date, nothing writes them. The folder 0.2.0
# has its library (of `tools/dist.sh FOLDER 2.28`) and first.c as compiled with its header, for x86_64: the program runs with the
# newest library, and the library communicates with the newest in both roles.
#
# WEFT_OLD_LIBRARIES: further ones, as files, separated by colons, or tags and commits of git (which are built into target/old).
set -uo pipefail
cd "$(dirname "$0")/.."
kept=ffi-tests/api/abi
out=target/abi
mkdir -p "$out"
# shellcheck source=tools/cases.sh
. tools/cases.sh

# A library that has the functions of a header and does nothing. abidw does not understand the type information that
# Rust writes; ffi-tests/run checks that libweft.so has the same functions, and the header is made from its structs.
stub() { # header, library
    # Each declaration of a function, on a line of its own, gets a body.
    { echo "#include \"$(realpath "$1")\""
        gcc -E -P "$1" | tr '\n' ' ' | sed 's/;/;\n/g' | grep -E '^ *(__attribute__.*)?[a-z].* \**weft_[a-z0-9_]+\(.*\);$' |
            grep -v typedef | sed 's/__attribute__((warn_unused_result))//; s/;$/ { __builtin_trap(); }/'
    } >"$2.c"
    gcc -std=c11 -g -shared -fPIC -Wl,-soname,libweft.so.0 "$2.c" -o "$2"
}

described() { # header, file: its ABI, as XML
    stub "$1" "$out/stub.so" &&
        abidw --no-show-locs --no-corpus-path --no-comp-dir-path --load-all-types --type-id-style hash --out-file "$2" "$out/stub.so"
}

# Nothing may change or be missing; additions are fine. abidiff takes a field of another type for growth, if the struct
# grows by it, which the layout does not.
compatible() { # header
    mkdir -p "$out/as"
    cmp -s "$1" "$out/as/weft.h" || cp "$1" "$out/as/weft.h"
    g++ -std=c++17 -fsyntax-only -I"$out/as" ffi-tests/api/layout.cpp || return 1
    described "$1" "$out/now.abi" || return 1
    abidiff --no-added-syms --suppressions "$kept/growth.ini" "$kept/weft-0.2.abi" "$out/now.abi"
}

# The comparison finds what it should.
notices() { # name, whether it is compatible, sed's script that changes the header
    local status=0
    sed -E "$3" include/weft.h >"$out/changed.h"
    cmp -s include/weft.h "$out/changed.h" && echo "$3 changes nothing" && settle "$1" 1 && return
    compatible "$out/changed.h" >"$out/changed.log" 2>&1 || status=1
    [ "$status" = "$2" ]
    local as_expected=$?
    [ "$as_expected" = 0 ] || cat "$out/changed.log"
    settle "$1" "$as_expected"
}

compare() {
    if ! command -v abidiff >/dev/null; then
        skip "the ABI is the kept one" "there is no abidiff (abigail-tools)"
        return
    fi
    local status=0
    compatible include/weft.h || status=1
    settle "the ABI is the kept one, or more" $status
    notices "a function more is fine" 0 's/^(WEFT_API uint32_t weft_version\(void\);)/\1 WEFT_API int weft_more(void);/'
    notices "a function less is not" 1 's/^WEFT_API uint32_t weft_version\(void\);//'
    notices "nor one with other parameters" 1 's/^WEFT_API uint32_t weft_version\(void\);/WEFT_API uint32_t weft_version(int);/'
    notices "a field more at the end of a sized struct is fine" 0 's/^(\} weft_op_options;)/uint64_t more; \1/'
    notices "one in the middle is not" 1 '/^typedef struct weft_op_options/,/^\}/ s/^    (uint32_t flags;)/uint64_t more; \1/'
    notices "nor a field that becomes longer" 1 '/^typedef struct weft_op_options/,/^\}/ s/uint32_t flags;/uint64_t flags;/'
    notices "nor a field of another type" 1 '/^typedef struct weft_op_options/,/^\}/ s/uint32_t flags;/int32_t flags;/'
    notices "nor a completion that grows" 1 's/^(\} weft_completion;)/uint64_t more; \1/'
}

first() { # target's library, writer's library, program
    local dirs=() i=0 library
    for library in "$1" "$2"; do
        dirs+=("$out/role$((i++))")
        mkdir -p "${dirs[-1]}"
        ln -sf "$library" "${dirs[-1]}/libweft.so.0"
    done
    LD_LIBRARY_PATH=${dirs[0]} timeout 300 "$3" target | LD_LIBRARY_PATH=${dirs[1]} timeout 300 "$3" writer
    [[ "${PIPESTATUS[*]}" == "0 0" ]]
}

over() { # what, target's library, writer's library, program
    local fabric status
    for fabric in host tcp; do
        status=0
        WEFT_TEST_FABRIC=$fabric first "$2" "$3" "${4:-$out/first}" >"$out/first.log" 2>&1 || status=1
        [ "$status" = 0 ] || cat "$out/first.log"
        settle "$1 over $fabric" $status
    done
}

talk() { # name, an older library
    over "$1 takes what the newest writes" "$2" "$newest"
    over "the newest takes what $1 writes" "$newest" "$2"
}

# A named file, or the library of a commit, which is built once, without optimisation, since nothing is measured.
library_of() {
    [ -f "$1" ] && realpath "$1" && return
    local tree=target/old/$1 quickly=(opt-level=1 lto=false codegen-units=16 debug=0)
    if [ ! -f "$tree/target/release/libweft.so" ]; then
        mkdir -p "$tree" && git archive "$1" | tar -x -C "$tree" || return 1
        (cd "$tree" && CARGO_TARGET_DIR=target "${CARGO:-cargo}" build --release --locked -p weft \
            "${quickly[@]/#/--config=profile.release.}") >&2 || return 1
    fi
    realpath "$tree/target/release/libweft.so"
}

# The library and the program of 0.2.0, as they were built from its commit.
unpack() { # name: its file
    xz -dc "$kept/0.2.0/$1.xz" >"$out/0.2.0/$1" && chmod +x "$out/0.2.0/$1"
}

programs() {
    local newest=$1 status=0 name old olds
    mkdir -p "$out/include"
    cp "$kept/weft-0.2.h" "$out/include/weft.h"
    gcc -std=c11 -O1 -g -Wall -Wextra -Wpedantic -Werror -I"$out/include" "$kept/first.c" "$newest" -o "$out/first" || status=1
    settle "the first program is built with the first header" $status
    over "the first program runs with the newest library," "$newest" "$newest"
    if [ "$(uname -m)" = x86_64 ]; then
        mkdir -p "$out/0.2.0"
        status=0
        unpack libweft.so.0 && unpack first || status=1
        settle "the library and the program of 0.2.0 are there" $status
        over "the program of 0.2.0 runs with the newest library," "$newest" "$newest" "$out/0.2.0/first"
        talk 0.2.0 "$PWD/$out/0.2.0/libweft.so.0"
    else
        skip "the program of 0.2.0, and its library" "they are of x86_64"
    fi
    IFS=: read -ra olds <<<"${WEFT_OLD_LIBRARIES:-}"
    for name in "${olds[@]}"; do
        if old=$(library_of "$name" 2>"$out/build.log"); then
            talk "${name##*/}" "$old"
        else
            tail -n 20 "$out/build.log"
            settle "$name can be built" 1
        fi
    done
}

case ${1:-} in
    write)
        if grep -q '^## \[0\.2\.0\] - [0-9]' CHANGELOG.md; then
            echo "weft-0.2.h and weft-0.2.abi stay: 0.2.0 is released"
        else
            cp include/weft.h "$kept/weft-0.2.h" && described include/weft.h "$kept/weft-0.2.abi" || exit 1
        fi
        tools/layout.py write
        ;;
    check)
        compare
        programs "$(realpath "${2:?where is libweft.so?}")/libweft.so"
        counted
        ;;
    *)
        echo "tools/abi.sh check LIBRARY_FOLDER | write" >&2
        exit 2
        ;;
esac
