#!/usr/bin/env bash
# A hash of what the library is made of: its files, and the versions of its dependencies; not its own version.
#     tools/sources.sh
set -euo pipefail
cd "$(dirname "$0")/.."
{ git ls-files -z src libfabric-sys/src | xargs -0 cat; grep checksum Cargo.lock; } | sha256sum | cut -c -16
