"""Prints the microseconds of the median write of one page by the package's blocking call."""

import json
import os
import statistics
import time

import libweft

PAGES, WARM_UP = 64, 500

spec = json.loads(os.environ["PAGE_SPEC"])
offer = {name: bytes(value) for name, value in json.loads(os.environ["PAGE_OFFER"]).items()}
if spec["two"]:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
page = spec["page_len"]
with libweft.Endpoint(fabric=spec["fabric"]) as endpoint:
    memory = endpoint.register(bytearray(page * PAGES))
    peer = endpoint.connect(offer["address"]).wait()
    remote = peer.import_memory(offer["descriptor"])
    times = []
    for i in range(WARM_UP + spec["writes"]):
        at = i % PAGES * page
        begun = time.perf_counter_ns()
        endpoint.write(memory, remote, page, local_offset=at, remote_offset=at).wait()
        times.append(time.perf_counter_ns() - begun)
    print(json.dumps({"Ok": statistics.median(times[WARM_UP:]) / 1e3}), flush=True)
