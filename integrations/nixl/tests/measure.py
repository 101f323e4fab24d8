#!/usr/bin/env python3
"""The WEFT backend beside others of NIXL, through the same calls: two processes, in turns, medians.

    measure.py ROUNDS JSON      a table, and the same as JSON; with NIXL_MEMORY=VRAM from the first GPU to the second
    measure.py --one            one backend (by the environment), one JSON object: for the above
    measure.py --itself         the same pages of two GPUs through libweft, without NIXL: for the above

Needs an environment with NIXL and NIXL_PLUGIN_DIR with all backends. NIXL_LIBFABRIC: a command that runs others with a
libfabric of 2.x, which the LIBFABRIC backend needs; without it that one is left out.
"""

import json
import os
import statistics
import subprocess
import sys
import time

SIZES = {"64k": (64 << 10, 1000), "8k": (8 << 10, 4000), "4k": (4 << 10, 8000)}
MANY = 112_000
RUNS = 5
#: As long as tools/compare measures.
SECONDS = 0.3
# For each fabric: WEFT, and the backends that it is compared with, by their environment.
BACKENDS = {
    "tcp": {
        "WEFT": {"NIXL_BACKEND": "WEFT", "WEFT_NIXL_FABRIC": "tcp", "WEFT_NIXL_RAILS": "lo"},
        "UCX tcp": {"NIXL_BACKEND": "UCX", "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"},
    },
    "host": {
        "WEFT": {"NIXL_BACKEND": "WEFT", "WEFT_NIXL_FABRIC": "host"},
        "UCX default": {"NIXL_BACKEND": "UCX"},
        "UCX posix": {"NIXL_BACKEND": "UCX", "UCX_TLS": "posix,self,tcp"},
    },
}
ON_GPUS = {"vram": {"WEFT": {"NIXL_BACKEND": "WEFT", "WEFT_NIXL_FABRIC": "host"}, "UCX": {"NIXL_BACKEND": "UCX"}}}
WITH_LIBFABRIC = os.environ.get("NIXL_LIBFABRIC", "").split()
if WITH_LIBFABRIC:
    BACKENDS["tcp"]["LIBFABRIC"] = {"NIXL_BACKEND": "LIBFABRIC"}


def one():
    import numpy as np
    from support import MEMORY, Agent, Child

    size = max(length * 2 * count for length, count in SIZES.values())
    there_on = 1 if MEMORY == "VRAM" else 0
    here, there = Agent(size), Child(size=size, device=there_on)
    name = here.meet(there.metadata)
    here.fill(1)
    random = np.random.default_rng(1)

    def prepared(length, count, slots):
        sides = [here.descs([(base + i * length, length, device) for i in range(slots)])
                 for base, device in ((here.base, 0), (there.base, there_on))]
        mine, theirs = here.prep_xfer_dlist("", sides[0]), here.prep_xfer_dlist(name, sides[1])
        picks = [random.permutation(slots)[:count].astype(np.int32) for _ in range(2)]
        began = time.perf_counter()
        make = lambda operation: here.make_prepped_xfer(operation, mine, picks[0], theirs, picks[1])
        handle = make("WRITE")
        return make, handle, time.perf_counter() - began

    def timed(handle):
        began = time.perf_counter()
        state = here.transfer(handle)
        posted = time.perf_counter() - began
        while state == "PROC" and (state := here.check_xfer_state(handle)) == "PROC":
            os.sched_yield()
        assert state == "DONE", state
        return time.perf_counter() - began, posted

    def repeated(handle):
        """A GPU needs a while until it is at its speed."""
        times, until = [], time.perf_counter() + (SECONDS if MEMORY == "VRAM" else 0)
        while len(times) < RUNS or time.perf_counter() < until:
            times.append(timed(handle)[0])
        return times

    whole = here.initialize_xfer("WRITE", here.descs([(here.base, size, 0)]), here.descs([(there.base, size, there_on)]), name)
    timed(whole)
    assert there.ask("checksum") == here.checksum(), "other bytes have arrived"
    figures = {}
    for size_name, (length, count) in SIZES.items():
        make, handle, _ = prepared(length, count, 2 * count)
        for operation in "write", "read":
            if operation == "read":
                handle = make("READ")
            timed(handle)
            seconds = statistics.median(repeated(handle))
            figures[f"{operation}_{size_name}_gbs"] = length * count / seconds / 1e9
    _, handle, _ = prepared(4096, 1, 16)
    timed(handle)
    figures["latency_us"] = statistics.median(timed(handle)[0] for _ in range(300)) * 1e6
    make, handle, first = prepared(512, MANY, 2 * MANY)
    timed(handle)
    preparing = [first]
    for _ in range(2):
        began = time.perf_counter()
        make("WRITE")
        preparing.append(time.perf_counter() - began)
    figures["prep_ms"] = statistics.median(preparing) * 1e3
    figures["post_us"] = statistics.median(timed(handle)[1] for _ in range(RUNS)) * 1e6
    there.close()
    print(json.dumps(figures), flush=True)
    os._exit(0)  # UCX may hang when its agent is destroyed


def itself():
    """Rates of the same pages through libweft, by tools/compare, which lies beside this file."""
    from pair import Pair

    length, count = SIZES["64k"]
    sides = [{"settings": {"fabric": "host", "gpu": gpu}, "environment": {}, "space": ()} for gpu in range(2)]
    both = Pair("weft", 2 * length * count, *sides)
    seconds = {operation: both.initiator.ask("measure", operation, length, count, [1, 2])["p50"] for operation in ("write", "read")}
    both.close()
    print(json.dumps({f"{operation}_64k_gbs": length * count / took / 1e9 for operation, took in seconds.items()}))


def run(environment, *command):
    inside = WITH_LIBFABRIC if environment["NIXL_BACKEND"] == "LIBFABRIC" else []
    done = subprocess.run([*inside, sys.executable, *(command or (__file__, "--one"))], env=os.environ | environment,
                          capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    return json.loads(done.stdout.splitlines()[-1])


def as_the_docs_name_them(figures, middle, own):
    if "vram" in middle:
        ratios = [statistics.median(rate[f"{op}_64k_gbs"] / alone[f"{op}_64k_gbs"] for rate, alone in own) for op in ("write", "read") if own]
        of_weft = {"nixl_vram_64k_of_weft": round(min(ratios), 3)} if ratios else {}
        return of_weft | {f"nixl_vram_{size}_over_best": min(figures[f"vram_{op}_{size}_over_best"] for op in ("write", "read"))
                for size in ("64k", "4k")}
    named = {f"nixl_{op}_{size}_over_best": figures[f"tcp_{op}_{size}_over_best"] for op in ("write", "read") for size in SIZES}
    named |= {f"nixl_host_{size}_over_best": min(figures[f"host_{op}_{size}_over_best"] for op in ("write", "read"))
              for size in ("64k", "4k")}
    named |= {"nixl_latency_over_best": figures["host_latency_over_best"]}
    return named | {f"nixl_{key}": round(max(backends["WEFT"][key] for backends in middle.values()), 2)
                    for key in ("prep_ms", "post_us")}


def main(rounds, path, backends_of=ON_GPUS if os.environ.get("NIXL_MEMORY") == "VRAM" else BACKENDS):
    results = {fabric: {name: [] for name in backends} for fabric, backends in backends_of.items()}
    own = []
    for _ in range(rounds):
        for fabric, backends in results.items():
            for name in list(backends):
                try:
                    backends[name].append(run(backends_of[fabric][name]))
                except (RuntimeError, subprocess.TimeoutExpired) as failure:
                    if name == "WEFT":
                        raise
                    print(f"{fabric}: {name} is left out: {failure}")
                    del backends[name]
        if "vram" in results and os.path.exists(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pair.py")):
            own.append((results["vram"]["WEFT"][-1], run({"NIXL_BACKEND": ""}, __file__, "--itself")))
    middle = {fabric: {name: {key: statistics.median(r[key] for r in runs) for key in runs[0]}
                       for name, runs in backends.items()} for fabric, backends in results.items()}
    figures = {}
    for fabric, backends in middle.items():
        print(f"\n{fabric}, medians of {rounds} rounds in turns on {os.cpu_count()} CPUs")
        print(f"{'':20}" + "".join(f"{name:>14}" for name in backends) + f"{'WEFT over best':>16}")
        others = [name for name in backends if name != "WEFT"]
        for key in next(iter(backends.values())):
            # Medians of the rounds' own ratios: a disturbance of the machine affects neighbouring measurements alike.
            better = max if key.endswith("gbs") else min
            ratio = statistics.median(
                results[fabric]["WEFT"][i][key] / better(results[fabric][name][i][key] for name in others)
                for i in range(rounds)) if others else float("nan")
            figures[f"{fabric}_{key.rsplit('_', 1)[0]}_over_best"] = round(ratio, 3)
            print(f"{key:20}" + "".join(f"{backends[name][key]:14.2f}" for name in backends) + f"{ratio:16.2f}")
    named = as_the_docs_name_them(figures, middle, own)
    print()
    for name, value in named.items():
        print(f"{name:28}{value:10}")
    figures |= named
    with open(path, "w") as file:
        json.dump({"rounds": rounds, "cpus": os.cpu_count(), "figures": figures, "medians": middle}, file, indent=1)


if __name__ == "__main__":
    alone = {"--one": one, "--itself": itself}.get(sys.argv[1])
    alone() if alone else main(int(sys.argv[1]), sys.argv[2])
