#!/usr/bin/env bash
# What `efa.sh run` does in a mount namespace: the emulator's devices take the place of the host's, and the command runs.
#     inside.sh DIR SHIM COMMAND...
set -euo pipefail
dir=$1 shim=$2 root=${EFA_ROOT:-}
sys=$dir/sys${EFA_HOST:-0}
shift 2
# The host's own first: they are out of sight once the tree is at /sys.
for part in devices/system kernel fs; do
    [ ! -d "/sys/$part" ] || mount --rbind "/sys/$part" "$sys/$part"
done
if [ -n "$root" ]; then
    # shellcheck disable=SC2086 # folders
    for folder in /proc /dev ${EFA_FOLDERS:-} $dir $(dirname "$shim"); do
        mkdir -p "$root$folder"
        mount --rbind "$folder" "$root$folder"
    done
fi
mkdir -p "$root/sys"
mount --rbind "$sys" "$root/sys"
export EFA_EMULATOR=$dir LD_PRELOAD=$shim${LD_PRELOAD:+:$LD_PRELOAD}
# Interface: between processes of one host libfabric would go around the device.
export FI_EFA_ENABLE_SHM_TRANSFER=${FI_EFA_ENABLE_SHM_TRANSFER:-0}
[ -n "$root" ] || exec "$@"
exec chroot "$root" "$@"
