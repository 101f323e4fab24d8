#!/usr/bin/env bash
# Plays the seeds of the state machines without I/O in one thread, by its processor time (sessions with their lanes, revocations): the figures
# machine_seeds and machine_seeds_per_s, which it prints and leaves in target/figures.
#     tools/machines.sh
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p target/figures

# Each says: played SEEDS seeds in SECONDS s
"${CARGO:-cargo}" test --quiet -p weft --lib -- --nocapture --test-threads 1 session::tests:: revocation:: \
    | tee /dev/stderr | awk '
    sub(/^.*played /, "played ") { machines++; seeds += $2; seconds += $5 }
    END {
        if (machines < 2) exit 1
        print seeds >"target/figures/machine_seeds"
        printf "%.0f\n", seeds / seconds >"target/figures/machine_seeds_per_s"
        printf "machine_seeds %d\nmachine_seeds_per_s %.0f\n", seeds, seeds / seconds
    }'
