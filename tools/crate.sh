#!/usr/bin/env bash
# The crate libweft: its tests, doctests (rust/README.md, too) and examples; that all of its interface is documented; and that it packs, with
# libfabric's types, from a copy in target/crate, since the sources are shared with libweft.so. No registry is asked.
# Leaves in target/figures: doctest_count, doctests that passed; crate_public_undocumented, public items without a comment.
#     tools/crate.sh [test|document|package]...   all of them without an argument
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
mkdir -p target/figures
log=$(mktemp)
trap 'rm -f "$log"' EXIT

figure() { # name, value
    echo "$1: $2"
    echo "$2" >"target/figures/$1"
}

in_crate() { # cargo's words
    # shellcheck disable=SC2086 # flags are words
    "$cargo" "$1" ${CARGO_FLAGS:-} -p libweft --features futures "${@:2}"
}

run_test() {
    in_crate test --features sim --test endpoints
    in_crate test --tests --examples
    for example in rust/examples/*.rs rust/examples/*/; do
        in_crate run -q --example "$(basename "$example" .rs)"
    done
    in_crate test --doc | tee "$log"
    figure doctest_count "$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$log")"
}

run_document() {
    # As a warning: all of them are counted.
    in_crate rustdoc -- --cap-lints warn -W missing-docs 2>&1 | tee "$log"
    figure crate_public_undocumented "$(grep -c '^warning: missing documentation' "$log" || true)"
    ! grep -E '^(warning|error): (unresolved link|public documentation)' "$log"
    grep -q '^0$' target/figures/crate_public_undocumented
}

run_package() {
    local into=target/crate
    rm -rf "$into/libweft" "$into/libfabric-sys" "$into"/target/package/*.crate # also those of other versions
    mkdir -p "$into"
    {
        printf '[workspace]\nmembers = ["libfabric-sys", "libweft"]\nresolver = "2"\n\n'
        sed -n '/^\[workspace.package\]/,/^\[package\]/p' Cargo.toml | sed '$d'
    } >"$into/Cargo.toml"
    cp Cargo.lock "$into/"
    cp -r libfabric-sys rust "$into/"
    mv "$into/rust" "$into/libweft"
    cp -r src "$into/libweft/"
    cp LICENSE-* "$into/libfabric-sys/"
    cp LICENSE-* "$into/libweft/"
    sed -i 's|^path = "../src/lib.rs"|path = "src/lib.rs"|' "$into/libweft/Cargo.toml"
    (cd "$into" && CARGO_TARGET_DIR=$PWD/target "$cargo" package --offline --allow-dirty -p weft-libfabric-sys -p libweft)
    ls -l "$into"/target/package/*.crate
}

[ $# -gt 0 ] || set -- test document package
for part; do
    "run_$part"
done
