#!/usr/bin/env python3
"""KV-cache pages from a prefill to a decode process, which find each other in a key-value store.

    python kv_cache.py store                    # anywhere: serves keys and values on 127.0.0.1:4712
    python kv_cache.py decode                   # has the memory, and asks for pages
    python kv_cache.py prefill                  # writes them

STORE=HOST:PORT names another place. Redis, etcd or torch's TCPStore do as well as this store: addresses and
descriptors are bytes, and may travel by any means.
"""

import asyncio
import os
import struct
import sys
import time
from multiprocessing.managers import BaseManager
from typing import Any, Dict

import libweft

LAYERS, PAGES, PAGE = 8, 64, 16384


class Store(BaseManager):
    """Python's own manager, as a key-value store."""


def place() -> Any:
    host, _, port = os.environ.get("STORE", "127.0.0.1:4712").rpartition(":")
    return host, int(port)


def serve() -> None:
    values: Dict[str, bytes] = {}
    Store.register("values", lambda: values, exposed=("get", "update"))
    Store(place(), b"not a secret").get_server().serve_forever()


def connected_store() -> Any:
    Store.register("values", exposed=("get", "update"))
    manager = Store(place(), b"not a secret")
    until = time.monotonic() + 20
    while True:
        try:
            manager.connect()
            return manager.values()  # type: ignore[attr-defined]
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


async def value_of(store: Any, key: str) -> bytes:
    while (value := store.get(key)) is None:
        await asyncio.sleep(0.05)
    return bytes(value)


def page(layer: int, index: int) -> bytes:
    return bytes([layer, index]) * (PAGE // 2)


async def decode(store: Any) -> None:
    async with libweft.Endpoint() as endpoint:
        layers = [endpoint.allocate(PAGES * PAGE) for _ in range(LAYERS)]
        cache = endpoint.register(layers)
        store.update({"decode": endpoint.address, "cache": cache.export()})
        prefill = await endpoint.connect(await value_of(store, "prefill"))
        wanted = [3, 1, 41]  # any pages, in any order
        request = 7
        await prefill.send(struct.pack(f"<Q{len(wanted)}I", request, *wanted))
        async for event in endpoint.events():
            if isinstance(event, libweft.PeerDown):
                raise SystemExit(f"prefill is gone: {event.reason}")
            if isinstance(event, libweft.Notification) and event.value == request:
                break  # every byte of every layer is here
        assert all(layers[layer][i * PAGE:][:PAGE] == page(layer, i) for layer in range(LAYERS) for i in wanted)
        print(f"decode: {len(wanted)} pages of {LAYERS} layers are here")


async def prefill(store: Any) -> None:
    async with libweft.Endpoint() as endpoint:
        local = endpoint.register([b"".join(page(layer, i) for i in range(PAGES)) for layer in range(LAYERS)])
        store.update({"prefill": endpoint.address})
        peer = await endpoint.connect(await value_of(store, "decode"))
        remote = peer.import_memory(await value_of(store, "cache"))
        async for event in endpoint.events():
            if isinstance(event, libweft.Message):
                request, *pages = struct.unpack(f"<Q{len(event.data) // 4 - 2}I", event.data)
                side = libweft.Side(pages, range_step=1)  # the same on both sides; each layer is a range
                done = await endpoint.write_pages(local, remote, PAGE, layers=LAYERS, local=side, remote=side,
                                                  notify=request, timeout=5)
                print(f"prefill: {done.bytes} bytes in {(done.done_ns - done.submit_ns) / 1e3:.0f} us")
            elif isinstance(event, libweft.PeerDown):
                return


if __name__ == "__main__":
    role = sys.argv[1] if len(sys.argv) == 2 else ""
    if role == "store":
        serve()
    elif role in ("decode", "prefill"):
        asyncio.run({"decode": decode, "prefill": prefill}[role](connected_store()))
    else:
        sys.exit(__doc__)
