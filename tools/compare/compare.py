#!/usr/bin/env python3
"""The comparison: `tools/compare.sh` calls this once for each piece, then for the report.

    compare.py round FABRIC ROUND       host, tcp or lab, or (between two GPUs) nvlink or staged: every engine once, in an order that
                                        turns with the rounds; then a rail is slow, a link goes down, the target is killed
    compare.py limits FABRIC            what a copy and a socket do here
    compare.py report                   a table, target/compare.json, charts; RECORD=1: into docs/, too

The pieces lie in target/compare/pieces. In the lab the hosts are those of tools/lab.sh, around which it is run.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

from pair import HERE, Failed, Pair

ROOT = HERE.parents[1]
PIECES = ROOT / "target/compare/pieces"
SHORT = bool(os.environ.get("SHORT"))
KIB, MIB = 1 << 10, 1 << 20
SIZES = {
    "1 x 4 KiB": (4 * KIB, 1), "1 x 64 KiB": (64 * KIB, 1), "1000 x 64 KiB": (64 * KIB, 1000),
    "4000 x 16 KiB": (16 * KIB, 4000), "20,000 x 4 KiB": (4 * KIB, 20_000), "128 x 1 MiB": (MIB, 128),
}
#: Of GPUs, which move more in the same time.
GPU_SIZES = {
    "1 x 4 KiB": (4 * KIB, 1), "1 x 64 KiB": (64 * KIB, 1), "4000 x 64 KiB": (64 * KIB, 4000),
    "16,000 x 16 KiB": (16 * KIB, 16_000), "60,000 x 4 KiB": (4 * KIB, 60_000), "500 x 1 MiB": (MIB, 500),
}
GPUS = ("nvlink", "staged")
if SHORT:
    SIZES = {name: SIZES[name] for name in ("1 x 4 KiB", "1000 x 64 KiB", "20,000 x 4 KiB")}
    GPU_SIZES = {name: GPU_SIZES[name] for name in ("1 x 4 KiB", "4000 x 64 KiB", "60,000 x 4 KiB")}
RAILS, RATE, SLOW = 4, "2gbit", "500mbit"
#: Of a transfer that comes to no end.
PATIENCE = 20.0

#: For each fabric its engines: name of the engine, its settings, its environment.
LAB_DEVICES = ",".join(f"rail{i}" for i in range(RAILS))
UCX_TCP = {"UCX_TLS": "tcp"}
VARIANTS = {
    "host": {
        "Weft": ("weft", {"fabric": "host"}, {}),
        "Weft, its memory": ("weft", {"fabric": "host", "allocated": True}, {}),
        "NIXL UCX": ("nixl", {}, {}),
        "NIXL UCX posix": ("nixl", {}, {"UCX_TLS": "posix,self,tcp"}),
    },
    "tcp": {
        "Weft": ("weft", {"fabric": "tcp", "rails": "lo"}, {}),
        "NIXL UCX": ("nixl", {}, UCX_TCP | {"UCX_NET_DEVICES": "lo"}),
        "NIXL LIBFABRIC": ("nixl", {"backend": "LIBFABRIC"}, {"FI_PROVIDER": "tcp"}),
        "Mooncake": ("mooncake", {}, {}),
    },
    "lab": {
        "Weft": ("weft", {"fabric": "tcp", "rails": "rail*"}, {}),
        "NIXL UCX": ("nixl", {}, UCX_TCP | {"UCX_NET_DEVICES": LAB_DEVICES}),
        f"NIXL UCX, {RAILS} rails": ("nixl", {}, UCX_TCP | {
            "UCX_NET_DEVICES": LAB_DEVICES, "UCX_MAX_RMA_RAILS": str(RAILS), "UCX_MAX_RNDV_RAILS": str(RAILS)}),
        "Mooncake": ("mooncake", {"address": "{address}"}, {}),
    },
    "nvlink": {
        "Weft": ("weft", {"fabric": "host", "gpu": "{gpu}"}, {}),
        "NIXL UCX": ("nixl", {"gpu": "{gpu}"}, {}),
    },
    "staged": {
        "Weft": ("weft", {"fabric": "tcp", "rails": "lo", "gpu": "{gpu}"}, {}),
        "NIXL UCX": ("nixl", {"gpu": "{gpu}"}, {"UCX_TLS": "tcp,cuda_copy,self", "UCX_NET_DEVICES": "lo"}),
    },
}
WHAT = {
    "nvlink": "From one GPU to another of the same host", "staged": "From one GPU to another over loopback TCP",
    "host": "Two processes of one host",
    "tcp": "TCP over loopback",
    "lab": f"Two hosts with {RAILS} rails of 2 Gbit (network namespaces)",
}
#: What is known beforehand, so that nothing is tried: it is shown in place of figures.
CANNOT = {
    ("host", "Mooncake"): "its wheel's Python interface has tcp only between processes without GPUs",
    ("host", "NIXL LIBFABRIC"): "NIXL's plugin uses libfabric's network providers only",
    ("lab", "NIXL LIBFABRIC"): "its plugin uses only the first tcp device",
}
EVENTS = {"host": ("killed",), "tcp": ("killed",), "nvlink": ("killed",), "staged": (), "lab": ("slow", "down", "killed")}
#: Metrics: unit, whether more is better, whether it is judged.
METRICS = {
    "gbs": ("GB/s", True, True), "p50_us": ("us, p50", False, True), "p99_us": ("us, p99", False, False),
    "cpu_s_per_gb": ("CPU s per GB, both sides", False, True), "first_ms": ("ms", False, True),
    "submit_us": ("us", False, True), "resident_mib": ("MiB, both sides", False, True),
    "idle_p50_us": ("us, p50", False, True), "slow_gbs": ("GB/s", True, True), "gap_ms": ("ms", False, True),
    "after_gbs": ("GB/s", True, True), "known_s": ("s", False, True),
}


def say(line):
    print(f"{time.strftime('%H:%M:%S')}  {line}", file=sys.stderr, flush=True)


def sizes(fabric):
    return GPU_SIZES if fabric in GPUS else SIZES


def region(fabric):
    """Twice what is moved at most, so that pages have places to be scattered over."""
    return max(2 * page * count for page, count in sizes(fabric).values())


def hosts():
    """For each side its address, and the words before its command."""
    if "WEFT_LAB_LEFT" not in os.environ:
        return {side: ("127.0.0.1", []) for side in ("left", "right")}
    return {side.lower(): (os.environ[f"WEFT_LAB_{side}_ADDRESS"], ["ip", "netns", "exec", os.environ[f"WEFT_LAB_{side}"]])
            for side in ("LEFT", "RIGHT")}


def pair(fabric, name):
    engine, settings, environment = VARIANTS[fabric][name]
    sides = []
    for gpu, (address, space) in enumerate(hosts().values()):
        own = {key: value.format(address=address, gpu=gpu) if isinstance(value, str) else value for key, value in settings.items()}
        sides.append({"settings": own, "environment": environment, "space": space})
    return Pair(engine, region(fabric), *sides)


def command(fabric, name):
    engine, settings, environment = VARIANTS[fabric][name]
    words = [f"{key}={value}" for key, value in environment.items()]
    return " ".join([*words, f"tools/compare/side.py {engine} '{json.dumps(settings)}' {region(fabric)}"])


class Round:
    """One engine in one round: a pair, made again after it failed."""

    def __init__(self, fabric, name):
        self.fabric, self.name, self.both, self.why = fabric, name, None, ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.both:
            self.both.close()
        self.both = None

    def run(self, call):
        """What `call` measures with the pair; why not, if it fails."""
        if self.why:
            return {"why": self.why}
        try:
            if self.both is None:
                self.both = pair(self.fabric, self.name)
                self.both.initiator.ask("fill", 1)
                self.both.target.ask("fill", 2)
        except (Failed, OSError) as error:
            self.why = str(error)
            return {"why": self.why}
        try:
            return call(self.both)
        except (Failed, OSError) as error:
            self.close()
            return {"why": str(error)}


def first(both):
    values = {"first_ms": (both.connected + both.initiator.ask("once", "write", 64 * KIB, 256, [1, 2])["whole"]) * 1e3,
              "resident_mib": (both.initiator.ask("resident") + both.target.ask("resident")) / MIB}
    submits = [both.initiator.ask("once", "write", 64 * KIB, 1000, [3 + i, 4])["submit"] for i in range(5)]
    return values | {"submit_us": sorted(submits)[2] * 1e6}


def cell(both, operation, page, count, seed):
    seeds = [seed, seed + 1]
    before = both.target.ask("cpu")
    done = both.initiator.ask("measure", operation, page, count, seeds)
    cpu = done["cpu"] + both.target.ask("cpu") - before
    if both.initiator.ask("checksum", page, count, seeds[0]) != both.target.ask("checksum", page, count, seeds[1]):
        raise Failed("the bytes are not those that were to be moved")
    values = {"p50_us": done["p50"] * 1e6, "p99_us": done["p99"] * 1e6, "cpu_s_per_gb": cpu / (page * count * done["count"] / 1e9)}
    if count > 1:
        values["gbs"] = page * count / done["p50"] / 1e9
    return values


def one_round(fabric, number):
    names = list(VARIANTS[fabric])
    tried = failures(fabric)
    results = {}
    for name in names[number % len(names):] + names[:number % len(names)]:
        say(f"{fabric}, round {number + 1}: {name}")
        results[name] = within(fabric, name) or turn_of(fabric, name, tried)
        for key, values in results[name].items():
            if "why" in values:
                say(f"    {key}: {values['why']}")
    return results


def within(fabric, name):
    """The same by the Python of NIXL_LIBFABRIC, of an engine that needs another libfabric than the system's."""
    words = os.environ.get("NIXL_LIBFABRIC", "").split() if name == "NIXL LIBFABRIC" else []
    if not words or os.environ.get("COMPARE_WITHIN"):
        return None
    run = subprocess.run([*words, __file__, "turn", fabric, name], env=os.environ | {"COMPARE_WITHIN": "1"},
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=300)
    if run.returncode:
        return {"first": {"why": (run.stderr.strip().splitlines() or ["it fails"])[-1][:200]}}
    return json.loads(run.stdout)


def turn_of(fabric, name, tried):
    mine = {}
    with Round(fabric, name) as turn:
        mine["first"] = turn.run(first)
        for operation in "write", "read":
            if operation == "read" and turn.both:
                turn.both.initiator.ask("fill", 3)
                turn.both.target.ask("fill", 4)
            for seed, (size, (page, count)) in enumerate(sizes(fabric).items()):
                key = f"{operation} {size}"
                # What failed once fails again, after a while that nobody has.
                mine[key] = ({"why": tried[name, key]} if (name, key) in tried else
                             turn.run(lambda both: cell(both, operation, page, count, 10 * seed)))  # pylint: disable=cell-var-from-loop
        mine["idle"] = turn.run(lambda both: {"idle_p50_us": both.initiator.ask("after_idleness", "write", 4 * KIB, 1, [1, 2])["p50"] * 1e6})
        for event in EVENTS[fabric]:
            say(f"    {event}")
            mine[event] = {"why": tried[name, event]} if (name, event) in tried else turn.run(globals()[event])
    return mine


def failures(fabric):
    """What failed in an earlier round, and why."""
    return {(name, key): values["why"] for path in PIECES.glob(f"round-{fabric}-*.json")
            for name, cells in json.loads(path.read_text()).items() for key, values in cells.items() if "why" in values}


# What happens meanwhile.

def lab(*words):
    subprocess.run([str(ROOT / "tools/lab.sh"), *map(str, words)], check=True)


def slow(both):
    lab("rate", 0, SLOW)
    try:
        return {"slow_gbs": cell(both, "write", 64 * KIB, 1000, 20)["gbs"]}
    finally:
        lab("rate", 0, RATE)


def down(both):
    """A link goes down: how long no transfer ends then, and how fast they are afterwards."""
    page, count, seconds = 64 * KIB, 1000, 4.0
    both.initiator.send("stream", ["write", page, count, [5, 6]], seconds, PATIENCE)
    time.sleep(1)
    at = time.time()
    lab("down", 1)
    try:
        done = both.initiator.answer()
    finally:
        lab("up", 1)
    if done["how"] != "done":
        raise Failed(f"a transfer fails: {done['how']}" if done["how"] else f"never: a transfer does not end within {PATIENCE:.0f} s")
    ends = [end for end in done["ends"] if end > at - 0.5]
    gaps = [(after - before, after) for before, after in zip(ends, ends[1:]) if after > at]
    gap, over = max(gaps)
    later = [end for end in ends if end > over]
    values = {"gap_ms": gap * 1e3}
    if len(later) > 1:
        values["after_gbs"] = page * count * (len(later) - 1) / (later[-1] - later[0]) / 1e9
    return values


def killed(both):
    """The target is killed: how long until the initiator has an error."""
    both.initiator.send("stream", ["write", 64 * KIB, 1000, [5, 6]], 2.0, PATIENCE)
    time.sleep(0.5)
    at = time.time()
    both.target.kill()
    done = both.initiator.answer()
    if not done["how"]:
        raise Failed(f"never: no error within {PATIENCE:.0f} s")
    if done["how"] == "done":
        raise Failed("transfers go on to succeed")
    return {"known_s": done["at"] - at}


# Limits.

def output(*words, **environment):
    return subprocess.run(words, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
                          timeout=60).stdout


def copied():
    """GB/s of a copy from one GPU to another by the driver."""
    import torch
    source, target = (torch.zeros(1 << 30, dtype=torch.uint8, device=f"cuda:{gpu}") for gpu in (0, 1))
    best = 0.0
    for _ in range(6):
        torch.cuda.synchronize(0), torch.cuda.synchronize(1)
        began = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize(0), torch.cuda.synchronize(1)
        best = max(best, source.numel() / (time.perf_counter() - began) / 1e9)
    return best


@contextlib.contextmanager
def beside(*words, **environment):
    process = subprocess.Popen(words, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def limits(fabric):
    program = str(ROOT / "target/compare/limits")
    results = {}
    many = {size: work for size, work in SIZES.items() if work[1] > 1}
    (_, here), (address, there) = hosts().values()
    if fabric in GPUS:
        return {"one contiguous copy": {"any": copied()}} if fabric == "nvlink" else {}
    if fabric == "host":
        results["memcpy, one thread"] = {size: float(output(program, "memcpy", str(page), str(count)))
                                         for size, (page, count) in many.items()}
    else:
        addresses = [re.sub(r"\.0\.2$", f".{rail}.2", address) for rail in range(RAILS)] if there else [address]
        sockets = {}
        for size, (page, count) in many.items():
            with beside(*there, program, "receive", str(page), str(count), *addresses):
                sockets[size] = float(output(*here, program, "send", str(page), str(count), *addresses))
        results["plain sockets" if len(addresses) > 1 else "plain socket"] = sockets
    if fabric == "tcp":
        with contextlib.suppress(FileNotFoundError, subprocess.SubprocessError), beside("iperf3", "-s", "-1", "-p", "7118"):
            time.sleep(0.5)
            done = json.loads(output("iperf3", "-c", "127.0.0.1", "-p", "7118", "-t", "2", "-J"))
            results["iperf3, one stream"] = {"any": done["end"]["sum_received"]["bits_per_second"] / 8e9}
    if fabric != "lab":
        tls = "posix,self" if fabric == "host" else "tcp"
        found = {}
        for size, (page, count) in many.items():
            with contextlib.suppress(FileNotFoundError, subprocess.SubprocessError, IndexError, ValueError), \
                    beside("ucx_perftest", "-p", "7119", UCX_TLS=tls):
                time.sleep(0.5)
                last = output("ucx_perftest", "127.0.0.1", "-p", "7119", "-t", "ucp_put_bw", "-s", str(page), "-n", str(4 * count),
                              UCX_TLS=tls).strip().splitlines()[-1]
                found[size] = float(last.split()[5]) * MIB / 1e9
        if found:
            results["ucx_perftest put_bw, one buffer"] = found
    return results


def main(what, *arguments):
    if what == "report":
        import report
        return report.main()
    if what == "turn":
        print(json.dumps(turn_of(*arguments, {})))
        return 0
    PIECES.mkdir(parents=True, exist_ok=True)
    made = {"round": one_round, "limits": limits}[what](arguments[0], *map(int, arguments[1:]))
    (PIECES / f"{'-'.join((what, *arguments))}.json").write_text(json.dumps(made))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
