#!/usr/bin/env bash
# A tree as /sys, with EFA devices of an instance: four behind each PCI switch, as a p5 has them (documentation).
#     tools/efa/sysfs.sh DIR NICS [p5|p4d [FIRST [GPUS]]]      FIRST: which of the emulator's NICs is the first; GPUS: of a p5
# What of /sys is not about devices is the host's own; `efa.sh` mounts it there.
set -euo pipefail
dir=$1 nics=$2 part=efa2 first=${4:-0} gpus=${5:-0}
[ "${3:-p5}" = p5 ] || part=efa1
rm -rf "$dir"
mkdir -p "$dir"/{class/infiniband_verbs,class/infiniband,class/net,bus/pci/drivers/efa,bus/pci/devices,devices/system,kernel,fs}
echo 6 >"$dir/class/infiniband_verbs/abi_version" # interface: of uverbs
for ((i = 0; i < nics; i++)); do
    printf -v switch 'devices/pci0000:44/0000:%02x:00.0' $((69 + i / 4))
    printf -v bus '0000:%02x:00.0' $((79 + i))
    name=rdmap$((79 + i))s0
    node=$dir/class/infiniband_verbs/uverbs$((first + i))
    device=$dir/$switch/$bus
    mkdir -p "$device/infiniband/$name/ports/1/gids" "$device/infiniband_verbs" "$node"
    echo 0x060400 >"$dir/$switch/class"
    echo "pci:v00001D0Fd0000${part^^}sv00001D0Fsd0000${part^^}bc02sc00i00" >"$device/modalias"
    echo 0x1d0f >"$device/vendor"
    echo "0x$part" >"$device/device"
    echo 0x020000 >"$device/class"
    echo 0 >"$device/numa_node"
    ln -s ../../../../bus/pci/drivers/efa "$device/driver"
    ln -s "../../../$switch/$bus" "$dir/bus/pci/devices/$bus"
    echo "4: ACTIVE" >"$device/infiniband/$name/ports/1/state"
    echo "7: unspecified" >"$device/infiniband/$name/node_type" # interface: of a NIC that is neither InfiniBand nor iWARP
    ln -s "../../../$bus" "$device/infiniband/$name/device"
    ln -s "../../$switch/$bus/infiniband/$name" "$dir/class/infiniband/$name"
    echo "231:$((192 + first + i))" >"$node/dev" # interface: uverbs' numbers
    echo "$name" >"$node/ibdev"
    echo 1 >"$node/abi_version" # interface: of efa
    ln -s "../../../$switch/$bus" "$node/device"
done
for ((i = 0; i < gpus; i++)); do
    printf -v switch 'devices/pci0000:44/0000:%02x:00.0' $((69 + i))
    printf -v bus '0000:%02x:00.0' $((160 + i))
    device=$dir/$switch/$bus
    mkdir -p "$device"
    echo 0x030200 >"$device/class"
    echo 0x10de >"$device/vendor"
    echo 0x2330 >"$device/device" # documentation: an H100
    echo 0 >"$device/numa_node"
    ln -s "../../../$switch/$bus" "$dir/bus/pci/devices/$bus"
done
