"""Prints the microseconds of the median write of one page by the package's blocking call."""

import json
import os
import statistics
from time import perf_counter_ns

import libweft

PAGES, WARM_UP = 64, 500


def times(endpoint, memory, remote, page, count):
    """In a function, as in programs: names of a module are looked up in dictionaries."""
    taken = []
    for i in range(count):
        at = i % PAGES * page
        begun = perf_counter_ns()
        endpoint.write(memory, remote, page, local_offset=at, remote_offset=at).wait()
        taken.append(perf_counter_ns() - begun)
    return taken


spec = json.loads(os.environ["PAGE_SPEC"])
offer = {name: bytes(value) for name, value in json.loads(os.environ["PAGE_OFFER"]).items()}
if spec["two"]:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
page = spec["page_len"]
with libweft.Endpoint(fabric=spec["fabric"]) as endpoint:
    memory = endpoint.register(bytearray(page * PAGES))
    peer = endpoint.connect(offer["address"]).wait()
    remote = peer.import_memory(offer["descriptor"])
    taken = times(endpoint, memory, remote, page, WARM_UP + spec["writes"])
    print(json.dumps({"Ok": statistics.median(taken[WARM_UP:]) / 1e3}), flush=True)
