#!/usr/bin/env bash
# Weights (libweft.weights) from one host to another over four rails of a gigabit, as a share of the line: needs root.
#     tools/weights-figures.sh LIBRARY_FOLDER [GB]
# At an MTU of 9000 headers leave 0.993 of the line.
set -euo pipefail
cd "$(dirname "$0")/.."
library=$(realpath "${1:?where is libweft.so?}")/libweft.so
# shellcheck source=tools/lab.sh
. tools/lab.sh
missing=$(lab_missing)
[ -z "$missing" ] || { echo "skipped: $missing"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export WEFT_LIBRARY=$library PYTHONPATH=$PWD/python/src PYTHONDONTWRITEBYTECODE=1
tools/lab.sh --rails 4 --rate 1gbit --mtu 9000 "python3 $PWD/python/tests/weights_lab.py $folder ${2:-4} 4"
