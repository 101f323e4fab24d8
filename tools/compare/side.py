"""One process of the comparison: has an engine, and does what comes in lines of JSON on its standard input.

    side.py ENGINE SETTINGS SIZE      SETTINGS: JSON, of the engine's constructor
"""

import json
import os
import resource
import sys
import time
import zlib

import numpy as np
from engines import ENGINES

#: A measurement takes this long, and has at least and at most this many transfers.
SECONDS, LEAST, MOST = float(os.environ.get("COMPARE_SECONDS", "0.3")), 3, 3000


def quantiles(times):
    return {"p50": float(np.quantile(times, 0.5)), "p99": float(np.quantile(times, 0.99))}


def resident():
    """Bytes of this process in memory; of what it shares, its part."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))


class Side:
    def __init__(self, engine, settings, size):
        before = resident()
        self.engine = ENGINES[engine](size, **settings)
        self.before, self.size = before + (size if self.engine.memory.kind == "DRAM" else 0), size

    def describe(self):
        return self.engine.describe()

    def know(self, other):
        self.engine.know(other)

    def connect(self, other):
        began = time.perf_counter()
        self.engine.connect(other)
        return time.perf_counter() - began

    def fill(self, seed):
        """Every 8 bytes differ, and differ from what any other seed gives."""
        self.engine.memory.fill(seed)

    def picked(self, page, count, seed):
        return np.random.default_rng(seed).permutation(self.size // page)[:count].astype(np.uint32)

    def checksum(self, page, count, seed):
        return zlib.crc32(self.engine.memory.pages(page, self.picked(page, count, seed)))

    def work(self, operation, page, count, seeds):
        return operation, page, self.picked(page, count, seeds[0]), self.picked(page, count, seeds[1])

    def cpu(self):
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def resident(self):
        """Bytes beyond what the process had before it had the engine, and beyond the memory that is moved."""
        return max(0, resident() - self.before)

    def measure(self, *work):
        move = self.engine.plan(*self.work(*work))
        for _ in range(1 if work[2] > 1 else 100):
            move()
        times, clock = [], time.perf_counter
        used, began = self.cpu(), clock()
        while True:
            start = clock()
            move()
            now = clock()
            times.append(now - start)
            if len(times) >= MOST or (now - began > SECONDS and len(times) >= LEAST):
                break
        return quantiles(times) | {"count": len(times), "cpu": self.cpu() - used, "seconds": now - began}

    def after_idleness(self, *work):
        """Each transfer begins 10 ms after the last one."""
        move, times = self.engine.plan(*self.work(*work)), []
        for _ in range(60):
            time.sleep(0.01)
            start = time.perf_counter()
            move()
            times.append(time.perf_counter() - start)
        return quantiles(times)

    def once(self, *work):
        """Seconds of one transfer that nothing prepares: all of it, and until it is accepted."""
        work = self.work(*work)
        self.engine.ready(work[1])
        start = time.perf_counter()
        handed = self.engine.hand_over(*work)
        accepted = time.perf_counter()
        self.engine.end(handed)
        return {"whole": time.perf_counter() - start, "submit": accepted - start}

    def stream(self, work, seconds, patience):
        """Transfers one after the other for some seconds, or until one fails or does not end: when each ended, and how the
        last one did."""
        work, began, ends = self.work(*work), time.time(), []
        while True:
            state = self.engine.start(*work)
            while not (how := state()):
                if time.time() - began > seconds + patience:
                    return {"began": began, "ends": ends, "how": "", "at": time.time()}
            ends.append(time.time())
            if how != "done" or time.time() - began > seconds:
                return {"began": began, "ends": ends, "how": how, "at": time.time()}


def main(engine, settings, size):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print what they like

    def answer(call):
        try:
            reply = {"reply": call()}
        except Exception as error:  # pylint: disable=broad-except
            plain = str(error) and isinstance(error, (AssertionError, RuntimeError))
            reply = {"error": str(error) if plain else f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=answers, flush=True)

    side = []
    answer(lambda: side.append(Side(engine, json.loads(settings), int(size))) or side[0].describe())
    for line in sys.stdin:
        what, arguments, named = json.loads(line)
        answer(lambda: getattr(side[0], what)(*arguments, **named))  # pylint: disable=cell-var-from-loop
    os._exit(0)  # some engines hang at their end


if __name__ == "__main__":
    main(*sys.argv[1:])
