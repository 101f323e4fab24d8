#!/usr/bin/env python3
"""The WEFT backend beside others of NIXL, through the same calls: two processes, in turns, medians.

    measure.py ROUNDS JSON      a table, and the same as JSON
    measure.py --one            one backend (by the environment), one JSON object: for the above

Needs an environment with NIXL and NIXL_PLUGIN_DIR with all backends.
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


def one():
    import numpy as np
    from support import Agent, Child

    size = max(length * 2 * count for length, count in SIZES.values())
    here, there = Agent(size), Child(size=size)
    name = here.meet(there.metadata)
    here.bytes[:] = 1
    random = np.random.default_rng(1)

    def prepared(length, count, slots):
        sides = [here.descs([(base + i * length, length, 0) for i in range(slots)])
                 for base in (here.bytes.ctypes.data, there.base)]
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
        while state == "PROC":
            os.sched_yield()
            state = here.check_xfer_state(handle)
        assert state == "DONE", state
        return time.perf_counter() - began, posted

    figures = {}
    for size_name, (length, count) in SIZES.items():
        make, handle, _ = prepared(length, count, 2 * count)
        for operation in "write", "read":
            if operation == "read":
                handle = make("READ")
            timed(handle)
            seconds = statistics.median(timed(handle)[0] for _ in range(RUNS))
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
    there.ask("checksum")
    there.close()
    print(json.dumps(figures), flush=True)
    os._exit(0)  # UCX may hang when its agent is destroyed


def run(environment, *command):
    done = subprocess.run([sys.executable, *(command or (__file__, "--one"))], env=os.environ | environment, capture_output=True,
                          text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    return json.loads(done.stdout.splitlines()[-1])


def main(rounds, path):
    results = {fabric: {name: [] for name in backends} for fabric, backends in BACKENDS.items()}
    for _ in range(rounds):
        for fabric, backends in BACKENDS.items():
            for name, environment in backends.items():
                results[fabric][name].append(run(environment))
    middle = {fabric: {name: {key: statistics.median(r[key] for r in runs) for key in runs[0]}
                       for name, runs in backends.items()} for fabric, backends in results.items()}
    figures = {}
    for fabric, backends in middle.items():
        print(f"\n{fabric}, medians of {rounds} rounds in turns on {os.cpu_count()} CPUs")
        print(f"{'':20}" + "".join(f"{name:>14}" for name in backends) + f"{'WEFT over best':>16}")
        others = [name for name in backends if name != "WEFT"]
        for key in next(iter(backends.values())):
            # Of the rounds' own ratios: what disturbs the machine disturbs neighbours in time alike.
            better = max if key.endswith("gbs") else min
            ratio = statistics.median(
                results[fabric]["WEFT"][i][key] / better(results[fabric][name][i][key] for name in others)
                for i in range(rounds))
            figures[f"{fabric}_{key.rsplit('_', 1)[0]}_over_best"] = round(ratio, 3)
            print(f"{key:20}" + "".join(f"{backends[name][key]:14.2f}" for name in backends) + f"{ratio:16.2f}")
    with open(path, "w") as file:
        json.dump({"rounds": rounds, "cpus": os.cpu_count(), "figures": figures, "medians": middle}, file, indent=1)


if __name__ == "__main__":
    one() if sys.argv[1:] == ["--one"] else main(int(sys.argv[1]), sys.argv[2])
