"""weft_topology and what an endpoint makes of it, on machines that are folders."""

import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from ctypes import byref, c_size_t, c_void_p

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

INVALID, TOO_SMALL = -40, -46
BRIDGE, ETHERNET, GPU, NVME = 0x060400, 0x020000, 0x030200, 0x010802


class Skip(Exception):
    pass


class Tree:
    """What /sys and /proc would show of a machine."""

    def __init__(self, nodes):
        self.folder = tempfile.mkdtemp(prefix="weft-topology-")
        self.paths = {}
        for i, cpus in enumerate(nodes):
            self.file(f"sys/devices/system/node/node{i}/cpulist", cpus)
            row = " ".join("10" if k == i else "21" for k in range(len(nodes)))
            self.file(f"sys/devices/system/node/node{i}/distance", row)
        if nodes:
            self.file("sys/devices/system/cpu/online", ",".join(nodes))

    def __enter__(self):
        os.environ["WEFT_SYSFS_ROOT"] = self.folder
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def file(self, path, text):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(f"{text}\n")

    def link(self, path, to):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(to, path)

    def function(self, path, kind, vendor, node):
        address = path.split("/")[-1]
        for name, value in (("class", f"{kind:#08x}"), ("vendor", f"{vendor:#06x}"),
                            ("device", "0x1234"), ("numa_node", node)):
            self.file(f"sys/devices/{path}/{name}", value)
        self.link(f"sys/bus/pci/devices/{address}", f"../../../devices/{path}")
        self.paths[address] = path

    def member(self, group, name, address):
        above = self.paths[address] if address else "virtual"
        self.file(f"sys/devices/{above}/{group}/{name}/operstate", "up")
        self.link(f"sys/class/{group}/{name}", f"../../devices/{above}/{group}/{name}")

    def files(self):
        return sorted(os.path.join(folder, name) for folder, folders, names in os.walk(self.folder)
                      for name in names + [f for f in folders
                                           if os.path.islink(os.path.join(folder, f))])


def p5():
    """2 nodes x 4 switches x (4 EFA NICs, a GPU, a drive)."""
    tree = Tree(["0-47", "48-95"])
    for gpu in range(8):
        bus, node = 0x44 + 0x11 * gpu, gpu // 4
        port = f"pci0000:{bus:02x}/0000:{bus:02x}:00.0"
        switch = f"{port}/0000:{bus + 1:02x}:00.0"
        tree.function(port, BRIDGE, 0x1d0f, node)
        tree.function(switch, BRIDGE, 0x1d0f, node)
        for i in range(6):
            below = f"{switch}/0000:{bus + 2:02x}:{i:02x}.0"
            address = f"0000:{bus + 11 + i:02x}:00.0"
            kind = (ETHERNET, ETHERNET, ETHERNET, ETHERNET, GPU, NVME)[i]
            tree.function(below, BRIDGE, 0x1d0f, node)
            tree.function(f"{below}/{address}", kind, 0x10de if kind == GPU else 0x1d0f, node)
            if kind == ETHERNET:
                tree.member("infiniband", f"rdmap{bus + 11 + i}s0", address)
    return tree


def nics_of(gpu):
    return [f"0000:{0x44 + 0x11 * gpu + 11 + i:02x}:00.0" for i in range(4)]


def topology():
    import raw as weft

    length = c_size_t()
    assert weft.lib.weft_topology(None, 0, byref(length)) == 0
    # A machine changes while it is looked at: room for a little more.
    buffer = ctypes.create_string_buffer(length.value + 4096)
    assert weft.lib.weft_topology(buffer, len(buffer), byref(length)) == 0
    assert buffer.raw[length.value:].strip(b"\0") == b""
    return json.loads(buffer.raw[:length.value])


def by_address(seen):
    return {device["address"]: device for device in seen["devices"]}


def lengths_are_reported():
    import raw as weft

    with p5():
        length = c_size_t()
        assert weft.lib.weft_topology(None, 0, None) == INVALID
        assert weft.lib.weft_topology(None, 10, byref(length)) == INVALID
        assert weft.lib.weft_topology(None, 0, byref(length)) == 0
        whole = length.value
        assert whole > 10000
        small = ctypes.create_string_buffer(b"x" * (whole - 1), whole - 1)
        length.value = 0
        assert weft.lib.weft_topology(small, whole - 1, byref(length)) == TOO_SMALL
        assert length.value == whole and small.raw == b"x" * (whole - 1)
        assert b"bytes" in weft.lib.weft_last_error()
        exact = ctypes.create_string_buffer(whole)
        assert weft.lib.weft_topology(exact, whole, byref(length)) == 0
        assert json.loads(exact.raw)["format"] == 1


def a_p5_is_described():
    with p5() as tree:
        seen = topology()
        assert seen["sysfs_root"] == tree.folder and seen["rails_source"] == "sysfs"
        assert (seen["cpus"], seen["affinity"]) == ("0-95", "0-95")
        assert [node["cpus"] for node in seen["nodes"]] == ["0-47", "48-95"]
        assert seen["nodes"][1]["distances"] == [21, 10]
        assert seen["nodes"][1]["near_nics"] == [nic for gpu in range(4, 8) for nic in nics_of(gpu)]
        devices = by_address(seen)
        for gpu in range(8):
            address = f"0000:{0x44 + 0x11 * gpu + 15:02x}:00.0"
            assert devices[address]["kind"] == "gpu" and devices[address]["usable"]
            assert devices[address]["near_nics"] == nics_of(gpu)
            assert devices[address]["nic_distance"] == "switch"
            assert devices[address]["near_cpus"] == ("0-47", "48-95")[gpu // 4]
            for nic in nics_of(gpu):
                assert devices[nic]["near_gpus"] == [address]
                assert devices[nic]["node"] == gpu // 4
                assert devices[nic]["interfaces"] == [f"rdmap{int(nic[5:7], 16)}s0"]
        parent = devices[devices["0000:53:00.0"]["parent"]]
        assert devices[parent["parent"]]["address"] == "0000:45:00.0"
        assert devices["0000:44:00.0"]["parent"] == "pci0000:44"
        assert len(seen["rails"]) == 32 and len(seen["workers"]) == 8
        for worker in seen["workers"]:
            assert worker["pinned"] and worker["cpus"] == ("0-47", "48-95")[worker["node"]]
            pcis = [seen["rails"][rail]["pci"] for rail in worker["rails"]]
            assert len(pcis) == 4 and len({devices[pci]["root"] for pci in pcis}) == 1


def ranks_get_their_own_rails():
    with p5() as tree:
        taken = []
        for gpu in range(8):
            os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
            seen = topology()
            assert [rail["pci"] for rail in seen["rails"]] == nics_of(gpu), gpu
            assert sum(d.get("usable", False) for d in seen["devices"]) == 1
            assert len(seen["workers"]) == 1
            taken += [rail["name"] for rail in seen["rails"]]
        assert len(set(taken)) == 32
        del os.environ["CUDA_VISIBLE_DEVICES"]
        tree.file("proc/self/status", "Cpus_allowed_list:\t50-60")
        seen = topology()
        assert seen["affinity"] == "50-60"
        assert {rail["node"] for rail in seen["rails"]} == {1} and len(seen["rails"]) == 16
        assert {worker["cpus"] for worker in seen["workers"]} == {"50-60"}
        os.environ["WEFT_RAILS"] = "rdmap79*"
        assert [rail["name"] for rail in topology()["rails"]] == ["rdmap79s0-rdm"]


def machines_that_show_nothing():
    with Tree([]):
        seen = topology()
        assert seen["nodes"] == seen["devices"] == seen["rails"] == seen["workers"] == []
        assert seen["affinity"] != ""
    os.environ["WEFT_SYSFS_ROOT"] = "/nonexistent/folder"
    assert topology()["devices"] == []


def this_machine_without_libfabric():
    os.environ["WEFT_LIBFABRIC"] = "/nonexistent/libfabric.so"
    seen = topology()
    assert seen["sysfs_root"] == "/" and seen["rails_source"] == "sysfs"
    if os.path.isdir("/sys/devices/system/cpu"):
        with open("/sys/devices/system/cpu/online") as file:
            assert seen["cpus"] == file.read().strip()
    if os.path.isdir("/sys/class/net/lo"):
        assert "lo" in [interface["name"] for interface in seen["interfaces"]]


def damaged_trees_do_no_harm():
    malformed = ["", "-1", "99999999999999999999", "\x00\x01", "0x", "a\nb", "0-", "," * 9999]
    draw = random.Random(7)
    with p5() as tree:
        for round_ in range(6):
            files = tree.files()
            for path in draw.sample(files, len(files) // 6):
                os.unlink(path)
                if draw.random() < 0.4:
                    with open(path, "w") as file:
                        file.write(draw.choice(malformed))
            os.environ["CUDA_VISIBLE_DEVICES"] = draw.choice(["0", "3,4", "", "GPU-x"])
            topology()


def two_nodes_of_our_cpus():
    """A tree in which the CPUs that we may use are two nodes, and lo is on the second."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise Skip("this process may use one CPU only")
    half = len(cpus) // 2
    lists = [",".join(map(str, some)) for some in (cpus[:half], cpus[half:])]
    tree = Tree(lists)
    tree.file("proc/self/status", "Cpus_allowed_list:\t" + ",".join(map(str, cpus)))
    for bus, node in ((1, 0), (2, 1)):
        tree.function(f"pci0000:{bus:02x}/0000:{bus:02x}:00.0", ETHERNET, 0x15b3, node)
    return tree, cpus[0], set(cpus[half:])


def rails_of(endpoint):
    import raw as weft

    own = weft.EndpointProperties()
    weft.lib.weft_endpoint_info(endpoint, byref(own), None)
    rails = [weft.RailProperties() for _ in range(own.rails)]
    for index, rail in enumerate(rails):
        weft.lib.weft_rail_info(endpoint, index, byref(rail), None)
    return own, rails


def worker_threads():
    threads = {}
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/comm") as file:
            name = file.read().strip()
        if name.startswith("weft") and "-worker" in name:
            threads[name] = os.sched_getaffinity(int(thread))
    return threads


def workers_stay_near_their_rails():
    import raw as weft

    tree, _, near = two_nodes_of_our_cpus()
    before = os.sched_getaffinity(0)
    with tree:
        tree.member("net", "lo", "0000:02:00.0")
        endpoint = c_void_p()
        config = weft.EndpointConfig(fabric=b"tcp", rails=b"lo", rail_count=3)
        weft.lib.weft_endpoint_create(byref(config), byref(endpoint))
        own, rails = rails_of(endpoint)
        assert (own.rails, own.workers) == (3, 1)
        for rail in rails:
            assert (rail.numa_node, rail.pci, rail.worker) == (1, b"0000:02:00.0", 0)
        threads = worker_threads()
        assert list(threads.values()) == [near], threads
        assert os.sched_getaffinity(0) == before
        weft.lib.weft_endpoint_destroy(endpoint)
        # With manual progress the caller's thread does the work, where it likes.
        config = weft.EndpointConfig(fabric=b"tcp", rails=b"lo", progress=1, workers=2, rail_count=3)
        weft.lib.weft_endpoint_create(byref(config), byref(endpoint))
        assert rails_of(endpoint)[0].rails == 3
        assert not worker_threads() and os.sched_getaffinity(0) == before
        weft.lib.weft_endpoint_destroy(endpoint)


def rails_without_a_place():
    import raw as weft

    before = os.sched_getaffinity(0)
    with Tree([]):
        endpoint = c_void_p()
        config = weft.EndpointConfig(fabric=b"tcp", rails=b"lo", rail_count=5, workers=2)
        weft.lib.weft_endpoint_create(byref(config), byref(endpoint))
        own, rails = rails_of(endpoint)
        assert (own.rails, own.workers) == (5, 2)
        assert {(rail.numa_node, rail.pci) for rail in rails} == {(-1, b"")}
        assert [rail.worker for rail in rails] == [0, 0, 1, 1, 1]
        assert set(map(frozenset, worker_threads().values())) == {frozenset(before)}
        weft.lib.weft_endpoint_destroy(endpoint)
        # One worker for four rails, where there are CPUs for them.
        config = weft.EndpointConfig(fabric=b"tcp", rails=b"lo", rail_count=8)
        weft.lib.weft_endpoint_create(byref(config), byref(endpoint))
        assert rails_of(endpoint)[0].workers == min(2, max(1, len(before) - 1))
        weft.lib.weft_endpoint_destroy(endpoint)


def own_network(*commands):
    """A network namespace of this process alone; its interfaces end with it."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise Skip("needs root and ip for a network namespace")
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) != 0:
        raise Skip("no network namespace: " + os.strerror(ctypes.get_errno()))
    for command in ("link set lo up",) + commands:
        done = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
        if done.returncode != 0:
            raise Skip(f"ip {command}: {done.stderr.strip()}")


def veth(name, *addresses):
    begin = [f"link add {name} type veth peer name p-{name}", f"link set {name} up", f"link set p-{name} up"]
    return begin + [f"addr add {address} dev {name}" for address in addresses]


def bridge(name, address):
    return [f"link add {name} type bridge", f"addr add {address} dev {name}", f"link set {name} up",
            *veth(f"{name[:9]}-c"), f"link set {name[:9]}-c master {name}"]


def default_names(**fields):
    import raw as weft

    endpoint = c_void_p()
    config = weft.EndpointConfig(fabric=b"tcp", **fields)
    weft.lib.weft_endpoint_create(byref(config), byref(endpoint))
    names = [rail.name.decode() for rail in rails_of(endpoint)[1]]
    weft.lib.weft_endpoint_destroy(endpoint)
    return sorted(names)


def interfaces_of_every_kind():
    own_network(*veth("w4", "10.71.0.1/24"), *veth("wpoint", "10.72.0.1/32 peer 10.72.0.2"),
                *veth("w6", "fd71::1/64 nodad"), *veth("wlocal"), *veth("w169", "169.254.7.1/16"),
                *bridge("docker0", "172.17.0.1/16"), *bridge("br-5f3c9b1d2e7a", "172.18.0.1/16"))
    assert default_names() == ["w4", "w6", "wpoint"], default_names()
    assert default_names(rails=b"docker*,!w*") == ["docker0"]


def endpoints_open_what_is_near():
    tree, first, _ = two_nodes_of_our_cpus()
    names = ["n0", "n1", "n2", "n3", "away"]
    own_network(*(command for i, name in enumerate(names)
                  for command in veth(name, f"10.7{i}.0.1/24")))
    with tree:
        tree.function("pci0000:02/0000:02:01.0", BRIDGE, 0x1000, 1)
        tree.function("pci0000:02/0000:02:01.0/0000:03:00.0", ETHERNET, 0x15b3, 1)
        tree.function("pci0000:02/0000:02:01.0/0000:03:01.0", GPU, 0x10de, 1)
        tree.function("pci0000:01/0000:01:02.0", GPU, 0x10de, 0)
        for name, address in (("n0", "0000:01:00.0"), ("n1", "0000:02:00.0"), ("n2", "0000:03:00.0")):
            tree.member("net", name, address)
        assert default_names() == sorted(names)
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        assert default_names() == ["away", "n2", "n3"], "n3 and away have no place"
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        assert default_names() == ["away", "n0", "n3"]
        assert default_names(rails=b"n1") == ["n1"]
        del os.environ["CUDA_VISIBLE_DEVICES"]
        tree.file("proc/self/status", f"Cpus_allowed_list:\t{first}")
        assert default_names() == ["away", "n0", "n3"]
        import raw as weft
        try:
            default_names(min_rails=4)
        except weft.Error as error:
            assert "WEFT_ERR_NO_RAILS" in str(error), error
        else:
            raise AssertionError("fewer rails than min_rails opened")


TESTS = {
    "lengths_are_reported": lengths_are_reported,
    "a_p5_is_described": a_p5_is_described,
    "ranks_get_their_own_rails": ranks_get_their_own_rails,
    "machines_that_show_nothing": machines_that_show_nothing,
    "this_machine_without_libfabric": this_machine_without_libfabric,
    "damaged_trees_do_no_harm": damaged_trees_do_no_harm,
    "workers_stay_near_their_rails": workers_stay_near_their_rails,
    "rails_without_a_place": rails_without_a_place,
    "interfaces_of_every_kind": interfaces_of_every_kind,
    "endpoints_open_what_is_near": endpoints_open_what_is_near,
}

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        for name in TESTS:
            print(name, "once")
    else:
        for name in ("CUDA_VISIBLE_DEVICES", "WEFT_RAILS", "WEFT_SYSFS_ROOT"):
            os.environ.pop(name, None)
        try:
            TESTS[sys.argv[1]]()
        except Skip as why:
            print(f"SKIPPED: {why}")
            sys.exit(77)
