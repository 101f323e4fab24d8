#!/usr/bin/env python3
"""Two hosts in network namespaces, in the networks that hosts have: each world connects both ways, writes, reads, sends a
message, and compares what each NIC carried by the kernel's counters with what was to be expected and with the rails'
statistics. Where there are two ways, a cable is cut.

    tools/test-networks.py LIBRARY_FOLDER [--short] [--only PART]... [--vm] [--other TREE]    needs root and iproute2

--vm: worlds that this kernel cannot make run in a virtual machine (tools/vm.sh), if there can be one.
--other: a working tree of another version, with its library in target/release: host b runs that one, and only host a's NICs are
judged.

One line for each world, and a last one with the count. Leaves in target/figures (not with --short): network_worlds_passed,
network_worlds_failed, rail_bytes_error, address_change_ms, address_change_dialer_ms.
"""
import argparse
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20
BYTES = 6 * MIB
RATE = "200mbit"
# Ethernet, IPv4 or IPv6, and TCP with timestamps.
HEADER = {4: 66, 6: 86}
# A NIC that must carry has this part of what an even division would give it; one that must not, this part of all.
LEAST, MOST = 0.3, 0.02
ERROR_MOST = 0.05
# How long a NIC has after an address was replaced.
CHANGE_S = 5.0
# How long a NIC has to come back to its own bytes, once neighbours may learn where it is.
LATER_S = 9
# The longest that a host may take for an answer: its operations end by their own deadlines before.
ANSWER_S = 90.0


# What runs on a host: a line for each command, a line for each answer.


def host() -> None:
    sys.path.insert(0, os.environ["WEFT_PACKAGE"])
    import libweft
    from libweft import PeerUp  # type: ignore[attr-defined]

    state: Dict[str, Any] = {}

    def opened(options: Dict[str, Any]) -> Any:
        if "secret" in options:
            options["secret"] = options["secret"].encode()
        endpoint = state["endpoint"] = libweft.Endpoint("tcp", **options)
        state["memory"] = memory = bytearray(BYTES)
        state["registered"] = endpoint.register(memory)
        names = [endpoint.rail_info(i).name.decode() for i in range(endpoint.info().rails)]
        return {"rails": names, "address": endpoint.address.hex(), "memory": state["registered"].export().hex()}

    def connect(address: str, memory: str, lanes: int, patience: float) -> Any:
        peer = state["peer"] = state["endpoint"].connect(bytes.fromhex(address), timeout=20).wait()
        state["remote"] = peer.import_memory(bytes.fromhex(memory))
        # A rail that was late joins a little later: hosts may have to learn first where an address is.
        until = time.monotonic() + patience
        while time.monotonic() < until and peer.info().lanes < lanes:
            time.sleep(0.05)
        return peer.info().lanes

    def write(seed: int) -> None:
        state["memory"][:] = pattern(seed)
        state["endpoint"].write(state["registered"], state["remote"], timeout=30).wait()

    def read(seed: int) -> bool:
        state["memory"][:] = bytes(BYTES)
        state["endpoint"].read(state["registered"], state["remote"], timeout=30).wait()
        return bool(state["memory"] == pattern(seed))

    def send() -> None:
        state["peer"].send(b"over here", timeout=10).wait()

    def receive() -> bool:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            event = state["endpoint"].wait_event(1)
            if isinstance(event, libweft.Message):
                return event.data == b"over here"
        return False

    def carried() -> Any:
        sums: Dict[str, List[int]] = {}
        endpoint = state["endpoint"]
        for i in range(endpoint.info().rails):
            rail, done = sums.setdefault(endpoint.rail_info(i).name.decode(), [0, 0, 0]), endpoint.rail_statistics(i)
            for at, value in enumerate((done.bytes_written, done.bytes_read, done.lanes)):
                rail[at] += value
        return sums

    def stream(seconds: float) -> Any:
        """Writes one after the other: the longest time that one took, in ms, how many there were, and for each NIC
        the longest time in which it carried nothing."""
        endpoint, now, longest, count = state["endpoint"], time.monotonic(), 0.0, 0
        until, part = now + seconds, MIB // 4
        last = {name: [done[0], now, 0.0] for name, done in carried().items()}
        print(json.dumps("begun"), flush=True)
        while now < until:
            began = now
            endpoint.write(state["registered"], state["remote"], part, timeout=20).wait()
            now = time.monotonic()
            longest, count = max(longest, now - began), count + 1
            for name, done in carried().items():
                seen = last[name]
                seen[2] = max(seen[2], now - seen[1])
                if done[0] > seen[0]:
                    seen[:2] = done[0], now
        return [longest * 1000, count, {name: seen[2] * 1000 for name, seen in last.items()}]

    def close() -> None:
        state.pop("endpoint").close()
        state.clear()

    commands = {"open": opened, "connect": connect, "write": write, "read": read, "send": send, "receive": receive,
                "carried": carried, "stream": stream, "close": close}
    for line in sys.stdin:
        name, args = json.loads(line)
        try:
            print(json.dumps(commands[name](*args)), flush=True)  # type: ignore[operator]
        except Exception as error:  # the other side prints it
            print(json.dumps({"error": f"{name}: {error}"}), flush=True)


def pattern(seed: int) -> bytes:
    return bytes((i * 7 + seed) & 0xff for i in range(4096)) * (BYTES // 4096)


# Networks.


class Failed(Exception):
    """A world is not as it must be."""


class Skipped(Exception):
    """This kernel cannot make a world."""


class Net:
    """Namespaces `a` and `b` (the hosts), and what connects them."""

    def __init__(self) -> None:
        self.spaces: List[str] = []
        self.arp_ignore = 1

    def name(self, space: str) -> str:
        return f"weft-net-{os.getpid()}-{space}"

    def run(self, *words: str) -> None:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=ANSWER_S)
        if done.returncode:
            kind = Skipped if "Unknown device type" in done.stdout else Failed
            raise kind(f"{' '.join(words)}: {done.stdout.strip()}")

    def space(self, space: str) -> None:
        if space not in self.spaces:
            self.spaces.append(space)
            self.run("ip", "netns", "add", self.name(space))
            self.ip(space, "link set lo up")
            self.set(space, "net/ipv4/tcp_congestion_control", "reno")
            for scope in ("all", "default"):
                self.set(space, f"net/ipv6/conf/{scope}/accept_dad", "0")
                self.set(space, f"net/ipv4/conf/{scope}/rp_filter", "0")
            self.set(space, "net/ipv4/conf/all/arp_ignore", str(self.arp_ignore if space in "ab" else 0))

    def ip(self, space: str, words: str) -> None:
        self.run("ip", "-n", self.name(space), *words.split())

    def set(self, space: str, path: str, value: str) -> None:
        self.run("ip", "netns", "exec", self.name(space), "sh", "-c", f"echo {value} >/proc/sys/{path}")

    def cable(self, one: str, other: str, *, mtu: int = 9000, rate: str = RATE) -> None:
        """Between two interfaces, as "a eth0"; hosts' ends have a rate."""
        (left, name), (right, far) = one.split(), other.split()
        self.space(left), self.space(right)
        self.ip(left, f"link add {name} mtu {mtu} type veth peer name {far} mtu {mtu} netns {self.name(right)}")
        for space, device in ((left, name), (right, far)):
            self.ip(space, f"link set {device} up")
            if space in "ab":
                self.run("tc", "-n", self.name(space), "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst",
                         "256k", "latency", "50ms")

    def switch(self, space: str, name: str, port: str, *, mtu: int = 9000) -> None:
        """Plugs a host's NIC into the switch `net`."""
        self.space("s")
        if not self.exists("s", port.split(".")[0]):
            self.ip("s", f"link add {port.split('.')[0]} mtu 9000 type bridge mcast_snooping 0")
            self.ip("s", f"link set {port.split('.')[0]} up")
        self.cable(f"{space} {name}", f"s {space}{name}", mtu=mtu)
        self.ip("s", f"link set {space}{name} master {port.split('.')[0]}")

    def exists(self, space: str, name: str) -> bool:
        return name in self.counters(space)

    def address(self, space: str, name: str, *addresses: str) -> None:
        for address in addresses:
            self.ip(space, f"addr add {address} dev {name}{' nodad' if ':' in address else ''}")

    def flat(self, nics: Dict[str, int], *, v4: bool = True, v6: bool = False, mtu: int = 9000) -> None:
        """All NICs of both hosts in one subnet."""
        number = 0
        for i in range(max(nics.values())):
            for space in "ab":
                number += 1
                if i < nics[space]:
                    self.switch(space, f"eth{i}", "net", mtu=mtu)
                    self.address(space, f"eth{i}", *([f"10.9.0.{number}/24"] if v4 else []), *([f"fd09::{number}/64"] if v6 else []))

    def subnets(self, count: int, address: Callable[[int, int], str] = lambda i, side: f"10.9.{i}.{side}/24") -> None:
        """A cable for each pair of NICs."""
        for i in range(count):
            self.cable(f"a eth{i}", f"b eth{i}")
            self.address("a", f"eth{i}", address(i, 1))
            self.address("b", f"eth{i}", address(i, 2))

    def routed(self, count: int, *, mtu: int = 9000) -> None:
        """Each host has subnets of its own behind a router."""
        self.space("r")
        self.set("r", "net/ipv4/ip_forward", "1")
        for side, space in ((1, "a"), (2, "b")):
            for i in range(count):
                self.cable(f"{space} eth{i}", f"r {space}{i}", mtu=mtu)
                self.address(space, f"eth{i}", f"10.{side}.{i}.1/24")
                self.address("r", f"{space}{i}", f"10.{side}.{i}.254/24")

    def counters(self, space: str) -> Dict[str, List[int]]:
        """Bytes and packets received, bytes and packets sent, by interface."""
        text = subprocess.run(["ip", "netns", "exec", self.name(space), "cat", "/proc/net/dev"], stdout=subprocess.PIPE,
                              text=True, check=True).stdout
        rows = (line.split(":") for line in text.splitlines() if ":" in line)
        return {name.strip(): [int(values.split()[at]) for at in (0, 1, 8, 9)] for name, values in rows}

    def wait(self) -> None:
        """Until all interfaces send: the kernel takes a moment."""
        until = time.monotonic() + 10
        for space in self.spaces:
            while time.monotonic() < until:
                shown = subprocess.run(["ip", "-n", self.name(space), "-br", "link", "show", "up"], stdout=subprocess.PIPE,
                                       text=True, check=True).stdout
                if not any("DOWN" in line.split()[1] for line in shown.splitlines()):
                    break
                time.sleep(0.02)

    def remove(self) -> None:
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", self.name(space)], check=False)


#: The variables of a process that name its library and its Python package.
Tree = Dict[str, str]


def tree_of(library: pathlib.Path, root: pathlib.Path) -> Tree:
    return {"WEFT_LIBRARY": str(library / "libweft.so"), "WEFT_PACKAGE": str(root / "python/src")}


class Host:
    """The process on a host; `tree`: what it runs."""

    def __init__(self, net: Net, space: str, before: List[str], tree: Tree) -> None:
        self.log = open(f"/tmp/weft-net-{os.getpid()}-{space}.log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", net.name(space), *before, sys.executable, __file__, "--host"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.log, text=True, env={**os.environ, **tree})
        self.lines: "queue.Queue[str]" = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def begin(self, name: str, *args: Any) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps([name, args]) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended, which `end` says

    def end(self) -> Any:
        try:
            line = self.lines.get(timeout=ANSWER_S)
        except queue.Empty:
            self.process.kill()
            raise Failed(f"no answer within {ANSWER_S:.0f} s: {self.said()[-800:]}") from None
        answer = json.loads(line) if line else {"error": "the process has ended"}
        if isinstance(answer, dict) and "error" in answer:
            raise Failed(answer["error"])
        return answer

    def ask(self, name: str, *args: Any) -> Any:
        self.begin(name, *args)
        return self.end()

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def stop(self) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.close()
            self.process.wait(10)
        except OSError:
            pass
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()
        os.unlink(self.log.name)


class World:
    def __init__(self, name: str, make: Callable[[Net], None], *, carry: str = "", also: str = "", cut: str = "", short: bool = False,
                 arp_ignore: int = 1, options: Optional[Dict[str, Any]] = None, before: Optional[List[str]] = None, v: int = 4,
                 warns: str = "", again: Tuple[str, ...] = (), lossy: bool = False, changes: Tuple[str, ...] = (),
                 figure: str = "", later: Tuple[str, ...] = ()) -> None:
        #: The NICs of both hosts that must carry, as "a eth0 eth1, b eth0 eth1"; others must not.
        self.carry = {part.split()[0]: part.split()[1:] for part in carry.split(",") if part.strip()}
        #: These may carry.
        self.also = {part.split()[0]: part.split()[1:] for part in also.split(",") if part.strip()}
        #: The interface that goes down, as "s aeth0"; commands for what went with it.
        self.again = again
        #: Commands that change addresses, each of a host, and how the longest time in which a NIC carried nothing is called.
        self.changes, self.figure = changes, figure
        #: Commands once they are connected, some time before anything is measured.
        self.later = later
        #: What is sent again counts for the kernel alone.
        self.lossy = lossy
        self.name, self.make, self.cut, self.short, self.arp_ignore = name, make, cut, short, arp_ignore
        self.options, self.before, self.v, self.warns = options or {}, before or [], v, warns


def both(nics: str) -> str:
    return f"a {nics}, b {nics}"


def world(name: str, **more: Any) -> Callable[[Callable[[Net], None]], Callable[[Net], None]]:
    def add(make: Callable[[Net], None]) -> Callable[[Net], None]:
        WORLDS.append(World(name, make, **more))
        return make
    return add


WORLDS: List[World] = []


# One subnet.


@world("one NIC each", carry=both("eth0"))
def _(net: Net) -> None:
    net.flat({"a": 1, "b": 1})


@world("two NICs in one subnet", carry=both("eth0 eth1"), cut="s aeth1", short=True)
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})


@world("four NICs in one subnet", carry=both("eth0 eth1 eth2 eth3"), cut="s beth0")
def _(net: Net) -> None:
    net.flat({"a": 4, "b": 4})


@world("four NICs in one subnet, MTU 1500", carry=both("eth0 eth1 eth2 eth3"), cut="s aeth0")
def _(net: Net) -> None:
    net.flat({"a": 4, "b": 4}, mtu=1500)


@world("two NICs here, one there", carry="a eth0 eth1, b eth0", cut="s aeth0")
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 1})


@world("one NIC here, three there", carry="a eth0, b eth0 eth1 eth2", cut="s beth1")
def _(net: Net) -> None:
    net.flat({"a": 1, "b": 3})


@world("any NIC answers ARP on both hosts", also=both("eth0 eth1"), arp_ignore=0, short=True)
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})


@world("any of four NICs answers ARP", also=both("eth0 eth1 eth2 eth3"), arp_ignore=0)
def _(net: Net) -> None:
    net.flat({"a": 4, "b": 4})


@world("any NIC answers ARP on one host", carry="a eth0 eth1", also="b eth0 eth1")
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})
    net.set("b", "net/ipv4/conf/all/arp_ignore", "0")


@world("replies are filtered strictly", also=both("eth0 eth1"), arp_ignore=0, warns="rp_filter")
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})
    for space in "ab":
        net.set(space, "net/ipv4/conf/all/rp_filter", "1")


@world("neighbours have learned other NICs", carry=both("eth0 eth1"))
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})
    for space, own in (("a", (1, 3)), ("b", (2, 4))):
        for source in own:
            for target in {1, 2, 3, 4} - set(own):
                # From a socket that is not bound to a NIC, as any other program's.
                send = (f"import socket; s = socket.socket(2, 2); s.bind(('10.9.0.{source}', 0)); "
                        f"s.sendto(b'', ('10.9.0.{target}', 9))")
                net.run("ip", "netns", "exec", net.name(space), sys.executable, "-S", "-c", send)


@world("a neighbour keeps another NIC for long", carry=both("eth0 eth1"), warns="counts for eth0",
       later=("a neigh del 10.9.0.4 dev eth0", "a neigh del 10.9.0.4 dev eth1"))
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})
    net.ip("b", "link set eth0 address 02:00:00:00:00:b0")
    for name in ("eth0", "eth1"):
        net.ip("a", f"neigh replace 10.9.0.4 lladdr 02:00:00:00:00:b0 nud permanent dev {name}")


@world("the first NIC was down and up", carry=both("eth0 eth1"))
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})
    net.ip("a", "link set eth0 down")
    net.ip("a", "link set eth0 up")


@world("one subnet and a default route by one NIC", carry=both("eth0 eth1"), cut="s aeth0")
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})
    for space in "ab":
        net.ip(space, "route add default via 10.9.0.254 dev eth0 onlink")


@world("one subnet, and rules for other traffic", carry=both("eth0 eth1"))
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})
    for space in "ab":
        net.ip(space, "rule add fwmark 7 lookup 77")
        net.ip(space, "rule add to 192.168.0.0/16 lookup 77")


@world("one subnet, ports given", carry=both("eth0 eth1"), options={"tcp_ports": "7000-7001"})
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})


@world("one subnet, encrypted", carry=both("eth0 eth1"), options={"encrypt": True, "secret": "0123456789abcdef0123456789abcdef"})
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})


@world("one subnet, several streams for each NIC", carry=both("eth0 eth1"), options={"tcp_streams": 2}, cut="s aeth1")
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})


@world("one subnet, one of the NICs is named", carry=both("eth1"), options={"rails": "eth1"})
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})


@world("IPv6 alone in one subnet", carry=both("eth0 eth1"), cut="s beth1", v=6, short=True)
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2}, v4=False, v6=True)


@world("both families in one subnet", carry=both("eth0 eth1"), cut="s aeth0")
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2}, v6=True)


@world("the first family gets no answers", carry=both("eth0"), v=6)
def _(net: Net) -> None:
    net.flat({"a": 1, "b": 1}, v6=True)
    net.ip("b", "route add blackhole 10.9.0.1/32")


@world("two addresses on each NIC", carry=both("eth0 eth1"))
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})
    for number, (space, name) in enumerate((("a", "eth0"), ("b", "eth0"), ("a", "eth1"), ("b", "eth1"))):
        net.address(space, name, f"10.9.0.{100 + number}/24")


# Several subnets.


@world("two subnets", carry=both("eth0 eth1"), cut="b eth0", short=True)
def _(net: Net) -> None:
    net.subnets(2)


@world("two subnets, IPv6 alone", carry=both("eth0 eth1"), cut="a eth1", v=6, again=("addr replace fd09:1::1/64 dev eth1 nodad",))
def _(net: Net) -> None:
    net.subnets(2, lambda i, side: f"fd09:{i}::{side}/64")


@world("/31 links", carry=both("eth0 eth1"), cut="a eth0")
def _(net: Net) -> None:
    net.subnets(2, lambda i, side: f"10.9.{i}.{side - 1}/31")


# (With arp_ignore=1 Linux answers for no address that has a peer's.)
@world("point-to-point addresses", carry=both("eth0 eth1"), cut="a eth0", arp_ignore=0)
def _(net: Net) -> None:
    net.subnets(2, lambda i, side: f"10.9.{i}.{side} peer 10.9.{i}.{3 - side}")


@world("/32 addresses with routes", carry=both("eth0 eth1"), cut="b eth0",
       again=("route add 10.9.0.1/32 dev eth0 src 10.9.0.2",))
def _(net: Net) -> None:
    net.subnets(2, lambda i, side: f"10.9.{i}.{side}/32")
    for space, side in (("a", 1), ("b", 2)):
        for i in range(2):
            net.ip(space, f"route add 10.9.{i}.{3 - side}/32 dev eth{i} src 10.9.{i}.{side}")


@world("two subnets of different MTU", carry=both("eth0 eth1"))
def _(net: Net) -> None:
    for i, mtu in enumerate((9000, 1500)):
        net.cable(f"a eth{i}", f"b eth{i}", mtu=mtu)
        net.address("a", f"eth{i}", f"10.9.{i}.1/24")
        net.address("b", f"eth{i}", f"10.9.{i}.2/24")


@world("a path that swallows large packets, and another", carry=both("eth1"), also=both("eth0"),
       lossy=True)
def _(net: Net) -> None:
    net.switch("a", "eth0", "net")
    net.switch("b", "eth0", "net")
    for space in "ab":  # one packet at a time: a switch is not asked for larger ones
        net.ip(space, "link set eth0 gso_max_segs 1")
    net.ip("s", "link set beth0 mtu 1500")  # the switch drops what is longer, without a word
    net.address("a", "eth0", "10.9.0.1/24")
    net.address("b", "eth0", "10.9.0.2/24")
    net.cable("a eth1", "b eth1")
    net.address("a", "eth1", "10.9.1.1/24")
    net.address("b", "eth1", "10.9.1.2/24")


# Behind a router.


@world("behind a router, by policy routes", carry=both("eth0 eth1"), cut="a eth1", short=True,
       again=("route add default via 10.1.1.254 dev eth1 table 101",))
def _(net: Net) -> None:
    net.routed(2)
    for side, space in ((1, "a"), (2, "b")):
        for i in range(2):
            net.ip(space, f"route add default via 10.{side}.{i}.254 dev eth{i} table {100 + i}")
            net.ip(space, f"rule add from 10.{side}.{i}.1 lookup {100 + i}")
        net.ip(space, f"route add default via 10.{side}.0.254 dev eth0")


@world("behind a router, a default route by each NIC", carry=both("eth0 eth1"), cut="a eth1",
       again=("route add default via 10.1.1.254 dev eth1 metric 101",))
def _(net: Net) -> None:
    net.routed(2)
    for side, space in ((1, "a"), (2, "b")):
        for i in range(2):
            net.ip(space, f"route add default via 10.{side}.{i}.254 dev eth{i} metric {100 + i}")


@world("behind a router, one default route over both", carry=both("eth0 eth1"), cut="r a1")
def _(net: Net) -> None:
    net.routed(2)
    for side, space in ((1, "a"), (2, "b")):
        hops = " ".join(f"nexthop via 10.{side}.{i}.254 dev eth{i}" for i in range(2))
        net.ip(space, f"route add default {hops}")


@world("behind a router, a default route by one NIC", also=both("eth0 eth1"), warns="leave by eth0")
def _(net: Net) -> None:
    net.routed(2)
    for side, space in ((1, "a"), (2, "b")):
        net.ip(space, f"route add default via 10.{side}.0.254 dev eth0")


@world("a rule sends all by one NIC", also=both("eth0 eth1"), warns="leave by eth0")
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})
    for space in "ab":
        net.ip(space, "route add 10.9.0.0/24 dev eth0 table 100")
        net.ip(space, "rule add to 10.9.0.0/24 lookup 100")


@world("one subnet, by policy routes", carry=both("eth0 eth1"), cut="s aeth0")
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})
    for space, numbers in (("a", (1, 3)), ("b", (2, 4))):
        for i, number in enumerate(numbers):
            net.ip(space, f"route add 10.9.0.0/24 dev eth{i} table {100 + i}")
            net.ip(space, f"rule add from 10.9.0.{number} lookup {100 + i}")


# Interfaces over interfaces.


@world("VLANs over one NIC", carry=both("eth0 eth0.5 eth0.6"), options={"rails": "eth0.*"})
def _(net: Net) -> None:
    net.cable("a eth0", "b eth0")
    for side, space in ((1, "a"), (2, "b")):
        for vlan in (5, 6):
            net.ip(space, f"link add link eth0 name eth0.{vlan} type vlan id {vlan}")
            net.address(space, f"eth0.{vlan}", f"10.9.{vlan}.{side}/24")
            net.ip(space, f"link set eth0.{vlan} up")


@world("a bond", carry=both("bond0"), also=both("eth0 eth1"), cut="s aeth0", options={"rails": "bond0"})
def _(net: Net) -> None:
    for side, space in ((1, "a"), (2, "b")):
        net.space(space)
        net.ip(space, "link add bond0 mtu 9000 type bond mode active-backup miimon 50")
        for i in range(2):
            net.switch(space, f"eth{i}", "net")
            net.ip(space, f"link set eth{i} down")
            net.ip(space, f"link set eth{i} master bond0")
        net.address(space, "bond0", f"10.9.0.{side}/24")
        net.ip(space, "link set bond0 up")


@world("a bridge over each NIC", carry=both("br0 br1 eth0 eth1"), cut="s aeth0", options={"rails": "br*"})
def _(net: Net) -> None:
    for side, space in ((1, "a"), (2, "b")):
        for i in range(2):
            net.switch(space, f"eth{i}", "net")
            net.ip(space, f"link add br{i} mtu 9000 type bridge")
            net.ip(space, f"link set eth{i} master br{i}")
            net.address(space, f"br{i}", f"10.9.0.{2 * i + side}/24")
            net.ip(space, f"link set br{i} up")


@world("macvlans of two NICs in one subnet", carry=both("eth0 eth1 mac0 mac1"), options={"rails": "mac*"})
def _(net: Net) -> None:
    for side, space in ((1, "a"), (2, "b")):
        for i in range(2):
            net.switch(space, f"eth{i}", "net")
            net.ip(space, f"link add link eth{i} name mac{i} type macvlan mode bridge")
            net.address(space, f"mac{i}", f"10.9.0.{2 * i + side}/24")
            net.ip(space, f"link set mac{i} up")


@world("VXLAN over one NIC", carry=both("eth0 overlay"), options={"rails": "overlay"})
def _(net: Net) -> None:
    net.flat({"a": 1, "b": 1})
    for side, space in ((1, "a"), (2, "b")):
        net.ip(space, f"link add overlay mtu 8900 type vxlan id 7 remote 10.9.0.{3 - side} dstport 4789 dev eth0")
        net.address(space, "overlay", f"10.99.0.{side}/24")
        net.ip(space, "link set overlay up")


@world("docker0 with the same address on both", carry=both("eth0 eth1"))
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})
    for space in "ab":
        net.ip(space, "link add docker0 type bridge")
        net.ip(space, "link add container0 type veth peer name container1")
        net.ip(space, "link set container0 master docker0 up")
        net.ip(space, "link set container1 up")
        net.address(space, "docker0", "172.17.0.1/16")
        net.ip(space, "link set docker0 up")


@world("two NICs of a VRF, without capabilities", also=both("eth0 eth1 red"), warns="leave by eth0",
       before=["ip", "vrf", "exec", "red", "setpriv", "--inh-caps=-all", "--bounding-set=-all"])
@world("two NICs of a VRF", carry=both("eth0 eth1"), also=both("red"), before=["ip", "vrf", "exec", "red"])
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})
    for space, numbers in (("a", (1, 3)), ("b", (2, 4))):
        net.ip(space, "link add red type vrf table 10")
        net.ip(space, "link set red up")
        for i in range(2):
            net.ip(space, f"link set eth{i} master red")


# Addresses that come and go.

CHANGES, CHANGES_DIALER = "address_change_ms", "address_change_dialer_ms"


def replace(space: str, name: str, old: str, new: str, pause: float = 0.0) -> str:
    return f"{space} addr del {old} dev {name};sleep {pause};addr add {new} dev {name}{' nodad' if ':' in new else ''}"


@world("the only address of the dialing side is replaced", carry=both("eth0"), figure=CHANGES_DIALER, short=True,
       changes=(replace("a", "eth0", "10.9.0.1/24", "10.9.0.101/24"),))
def _(net: Net) -> None:
    net.flat({"a": 1, "b": 1})


@world("the only address of the accepting side is replaced", carry=both("eth0"),
       changes=(replace("b", "eth0", "10.9.0.2/24", "10.9.0.102/24"),))
def _(net: Net) -> None:
    net.flat({"a": 1, "b": 1})


@world("the only addresses are replaced in turn, twice", carry=both("eth0"),
       changes=(replace("b", "eth0", "10.9.0.2/24", "10.9.0.102/24"), replace("a", "eth0", "10.9.0.1/24", "10.9.0.101/24"),
                replace("a", "eth0", "10.9.0.101/24", "10.9.0.103/24"), replace("b", "eth0", "10.9.0.102/24", "10.9.0.104/24")))
def _(net: Net) -> None:
    net.flat({"a": 1, "b": 1})


@world("an address is away for a second", carry=both("eth0"),
       changes=(replace("a", "eth0", "10.9.0.1/24", "10.9.0.1/24", 1.0), replace("b", "eth0", "10.9.0.2/24", "10.9.0.2/24", 1.0)))
def _(net: Net) -> None:
    net.flat({"a": 1, "b": 1})


@world("one of two addresses of the dialing side is replaced", carry=both("eth0 eth1"), figure=CHANGES,
       changes=(replace("a", "eth1", "10.9.1.1/24", "10.9.1.101/24"),))
def _(net: Net) -> None:
    net.subnets(2)


@world("one of two addresses of the accepting side is replaced", carry=both("eth0 eth1"), figure=CHANGES, short=True,
       changes=(replace("b", "eth1", "10.9.1.2/24", "10.9.1.102/24"),))
def _(net: Net) -> None:
    net.subnets(2)


@world("an address of two NICs in one subnet is replaced on each side", carry=both("eth0 eth1"), figure=CHANGES,
       changes=(replace("b", "eth0", "10.9.0.2/24", "10.9.0.102/24"), replace("a", "eth1", "10.9.0.3/24", "10.9.0.103/24")))
def _(net: Net) -> None:
    net.flat({"a": 2, "b": 2})


@world("addresses for privacy: a new one, then the old one is deprecated and goes", carry=both("eth0"), v=6,
       changes=("a addr add fd09::101/64 dev eth0", "a addr change fd09::1/64 dev eth0 preferred_lft 0",
                "a addr del fd09::1/64 dev eth0"))
def _(net: Net) -> None:
    net.flat({"a": 1, "b": 1}, v4=False, v6=True)


@world("the family in use goes, and the other one is there", carry=both("eth0"),
       changes=("b addr del 10.9.0.2/24 dev eth0",))
def _(net: Net) -> None:
    net.flat({"a": 1, "b": 1}, v6=True)


# A run.


class Moved:
    """What each NIC of both hosts has carried, and what the rails say of it."""

    def __init__(self, net: Net) -> None:
        self.net, self.before = net, {space: net.counters(space) for space in "ab"}

    def payload(self, v: int) -> Dict[str, Dict[str, Tuple[int, int]]]:
        """By host and NIC: received and sent, without headers."""
        result: Dict[str, Dict[str, Tuple[int, int]]] = {}
        for space in "ab":
            for name, after in self.net.counters(space).items():
                before = self.before[space].get(name, [0, 0, 0, 0])
                grown = [new - old for new, old in zip(after, before)]
                sizes = tuple(max(0, grown[at] - HEADER[v] * grown[at + 1]) for at in (0, 2))
                result.setdefault(space, {})[name] = (sizes[0], sizes[1])
        return result


def judge(world: World, moved: Dict[str, Dict[str, Tuple[int, int]]], what: str) -> None:
    """That the NICs that must carry do, and others do not."""
    for space, nics in moved.items():
        names, also = world.carry.get(space, []), world.also.get(space, [])
        for name, (received, sent) in nics.items() if space in world.carry else ():
            least = LEAST * BYTES / len(names) if name not in also else 0
            if name in names and min(received, sent) < least:
                raise Failed(f"{what}: {space}'s {name} carried {received} in and {sent} out, of {BYTES}: {moved}")
            if name != "lo" and name not in names + also and max(received, sent) > MOST * BYTES:
                raise Failed(f"{what}: {space}'s {name} carried {received} in and {sent} out, and must not: {moved}")


def error_of(stats: Dict[str, List[int]], moved: Dict[str, Tuple[int, int]]) -> float:
    """How far the rails' statistics are from the kernel's counters, in parts of what the NIC carried; of NICs that
    carried little, in parts of a tenth of all."""
    worst = 0.0
    for name, (written, read, _) in stats.items():
        received, sent = moved.get(name, (0, 0))
        for said, counted in ((written, sent), (read, received)):
            worst = max(worst, abs(said - counted) / max(said, counted, BYTES / 10))
    return worst


def run(world: World, results: Dict[str, float], trees: Dict[str, Tree]) -> str:
    net, hosts = Net(), {}  # type: Tuple[Net, Dict[str, Host]]
    net.arp_ignore = world.arp_ignore
    told: List[str] = []
    try:
        net.space("a"), net.space("b")
        world.make(net)
        if world.before:
            subprocess.run(["ip", "netns", "exec", net.name("a"), *world.before, "true"], check=True, stderr=subprocess.DEVNULL)
        hosts = {space: Host(net, space, world.before, trees[space]) for space in "ab"}
        net.wait()
        error = 0.0
        for here, there in (("a", "b"), ("b", "a")):
            opened = {space: hosts[space].ask("open", world.options) for space in "ab"}
            lanes = hosts[here].ask("connect", opened[there]["address"], opened[there]["memory"],
                                     max(len(opened[space]["rails"]) for space in "ab") if not world.lossy else 1,
                                     30.0 if world.later else 6.0)
            if world.later and here == "a":
                for words in world.later:
                    net.ip(*words.split(" ", 1))
                time.sleep(LATER_S)
            before, earlier = Moved(net), hosts[here].ask("carried")
            hosts[here].ask("write", 3)
            right = hosts[here].ask("read", 3)
            if not right:
                raise Failed(f"from {here}: what was read is not what was written")
            moved = before.payload(world.v)
            stats = {name: [now - then for now, then in zip(done, earlier[name])] for name, done in hosts[here].ask("carried").items()}
            hosts[there].begin("receive")
            hosts[here].ask("send")
            if not hosts[there].end():
                raise Failed(f"from {here}: the message did not arrive")
            known = [space for space in "ab" if trees[space] == trees["a"]]
            judge(world, {space: moved[space] for space in known}, f"from {here} ({lanes} lanes)")
            differs = 0.0 if world.lossy or here not in known else error_of(stats, moved[here])
            results["error"] = max(results.get("error", 0), differs)
            if differs > ERROR_MOST:
                raise Failed(f"from {here}: statistics differ from the kernel's counters by {differs:.3f}: {stats}, {moved}")
            error = max(error, differs)
            told.append(f"{lanes} lanes")
            if world.cut and here == "a":
                told.append(cut(world, net, hosts[here], results))
            if world.changes and here == "a":
                told.append(change(world, net, hosts, results))
            for space in "ab":
                hosts[space].ask("close")
        said = "".join(host.said() for host in hosts.values())
        if world.warns and world.warns not in said:
            raise Failed(f"no warning names {world.warns}: {said[-400:]}")
        if not world.warns and not world.cut and world.arp_ignore and "counts for" in said:
            raise Failed(f"an unexpected warning: {said[-400:]}")
        return ", ".join(dict.fromkeys(told)) + f"; statistics differ by {error:.3f}"
    finally:
        for host in hosts.values():
            host.stop()
        net.remove()


def cut(world: World, net: Net, initiator: Host, results: Dict[str, float]) -> str:
    space, name = world.cut.split()
    initiator.begin("stream", 3.0)
    initiator.end()
    time.sleep(0.5)
    net.ip(space, f"link set {name} down")
    time.sleep(1.5)
    net.ip(space, f"link set {name} up")
    for words in world.again:
        net.ip(space, words)
    longest, count, _ = initiator.end()
    results["failover"] = max(results.get("failover", 0), longest)
    if count < 10:
        raise Failed(f"after the cut only {count} writes ended")
    return f"cut: {longest:.0f} ms"


def change(world: World, net: Net, hosts: Dict[str, Host], results: Dict[str, float]) -> str:
    """Addresses are replaced while a host writes: what it writes goes on by all NICs."""
    initiator = hosts["a"]
    initiator.begin("stream", 1.0 + CHANGE_S * len(world.changes))
    initiator.end()
    time.sleep(0.5)
    for words in world.changes:
        space, rest = words.split(" ", 1)
        for part in rest.split(";"):
            time.sleep(float(part.split()[1])) if part.split()[0] == "sleep" else net.ip(space, part)
        time.sleep(CHANGE_S)
    longest, count, still = initiator.end()
    worst = max(still.values())
    if world.figure:
        results[world.figure] = max(results.get(world.figure, 0), worst)
    most = (CHANGE_S - 1) * 1000
    if count < 10 or worst > most:
        raise Failed(f"after the change {count} writes ended; without a byte for ms: {still}: "
                     + "".join(host.said() for host in hosts.values())[-800:])
    initiator.ask("write", 5)
    if not initiator.ask("read", 5):
        raise Failed("after the change: what was read is not what was written")
    return f"carries again after {worst:.0f} ms, the longest write {longest:.0f} ms"


def in_a_machine(library: str, names: List[str]) -> List[str]:
    """Runs worlds in a virtual machine; the first word of the line of each that it made."""
    only = [word for name in names for word in ("--only", name)]
    done = subprocess.run([str(ROOT / "tools/vm.sh"), sys.executable, __file__, str(pathlib.Path(library).resolve()), *only],
                          stdout=subprocess.PIPE, text=True, check=False, env={**os.environ, "VM_LIMIT": "1200"})
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "FAILED "))]
    print("".join(f"{line} (in a virtual machine)\n" for line in lines), end="", flush=True)
    return [line.split()[0] for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", nargs="?", default="target/release")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", action="append")
    parser.add_argument("--vm", action="store_true")
    parser.add_argument("--other", type=pathlib.Path)
    parser.add_argument("--host", action="store_true")
    args = parser.parse_args()
    if args.host:
        host()
        return 0
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    trees = dict.fromkeys("ab", tree_of(pathlib.Path(args.library).resolve(), ROOT))
    if args.other:
        other = args.other.resolve()
        trees["b"] = tree_of(other / "target/release", other)
    passed, failed, skipped = 0, 0, []  # type: Tuple[int, int, List[str]]
    results: Dict[str, float] = {}
    if os.geteuid() or subprocess.run(["unshare", "--mount", "--net", "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        print("skipped networks: only root can make network namespaces\n0 passed, 0 failed, 1 skipped")
        return 0
    for world in WORLDS:
        named = any(part in world.name for part in args.only or [""])
        if not named or args.short and not world.short or args.other and world.changes:
            continue
        try:
            print(f"ok      {world.name:52} {run(world, results, trees)}", flush=True)
            passed += 1
        except Skipped as why:
            print(f"skipped {world.name}: {str(why)[-80:]}", flush=True)
            skipped.append(world.name)
        except (Failed, subprocess.SubprocessError) as why:
            print(f"FAILED  {world.name:52} {str(why)[:600]}", flush=True)
            failed += 1
    if args.vm and skipped:
        there = in_a_machine(args.library, skipped)
        passed, failed, skipped = passed + there.count("ok"), failed + there.count("FAILED"), skipped[len(there):]
    if not args.short and not any(args.only or ()) and not args.other:
        figures = ROOT / "target/figures"
        figures.mkdir(parents=True, exist_ok=True)
        for name, value in (("network_worlds_passed", passed), ("network_worlds_failed", failed),
                            ("rail_bytes_error", round(results.get("error", 0), 4)),
                            *((name, round(results[name])) for name in (CHANGES, CHANGES_DIALER) if name in results)):
            (figures / name).write_text(f"{value}\n", encoding="utf-8")
            print(f"{name:28}{value}")
    print(f"{passed} passed, {failed} failed, {len(skipped)} skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
