#!/usr/bin/env python3
"""Four processes whose clients connect and close every second, over host and tcp, for hours; nothing may grow.

    tools/soak.py HOURS        `make soak HOURS=2`

Each process has, for each fabric, a server, which gives memory and a file to any client, and a client that stays connected to the
servers of the other three. Every second it also has a brief client: a new endpoint that connects to one server,
transfers, and closes or disconnects. Every ten seconds one more process, with clients of two servers, is killed. Clients
transfer in all ways; both sides compare the bytes. In every tenth second there are no brief clients, and each process is
measured: resident memory, descriptors, threads. The first 45 minutes are not judged (`settled`).

Every minute a line has the figures so far. At the end target/figures has soak_rss_slope_kb_per_h (the steepest of the
four, by least squares) and soak_descriptors (by how many descriptors, or threads, a process grew); if both are within
their limits, target/soak has the hash of the sources (tools/sources.sh) and the hours, for tools/release.sh.
"""
import ctypes
import gc
import json
import multiprocessing
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

os.environ.setdefault("WEFT_LOG", "error")  # peers are lost all the time: those that are killed
import libweft  # noqa: E402

PROCESSES, FABRICS = 4, ("host", "tcp")
PAGE, PAGES, SLOTS = 4096, 16, 64
SLOT = PAGE * PAGES
PERIOD = 10  # seconds from one measurement to the next
PATIENCE = 60
LIMITS = {"soak_rss_slope_kb_per_h": 256, "soak_descriptors": 0}


def opened(fabric):
    return libweft.Endpoint(fabric, rails="lo" if fabric == "tcp" else None)


def pattern(seed):
    return random.Random(seed).randbytes(SLOT)


class Server:
    """Gives each client a slot of its memory, of its file and under a grant, and a counter, and compares what arrives."""

    def __init__(self, fabric):
        self.endpoint = opened(fabric)
        self.bytes, self.granted = bytearray(SLOTS * SLOT), bytearray(SLOTS * SLOT)
        self.memory = self.endpoint.register(self.bytes)
        self.under_grant = self.endpoint.register(self.granted, access=libweft.Access.GRANTED)
        self.file = tempfile.TemporaryFile(dir="/var/tmp")
        self.file.truncate(SLOTS * SLOT)
        self.stored = self.endpoint.register_file(self.file, [(0, SLOTS * SLOT)])
        self.free, self.clients, self.wrong = list(range(SLOTS)), {}, 0
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            event = self.endpoint.wait_event(None)
            try:
                self.handle(event)
            except (libweft.PeerError, libweft.UsageError):
                pass  # the peer was killed meanwhile, and its PeerDown is next
            del event

    def handle(self, event):
        if isinstance(event, libweft.PeerDown):
            client = self.clients.pop(event.peer.id, None)
            if client is not None:
                slot, token, counter = client
                self.endpoint.revoke(token).wait(PATIENCE)
                counter.destroy()
                self.free.append(slot)
        elif isinstance(event, libweft.Message):
            request, *rest = event.data.split(b" ", 1)
            if request == b"open":
                slot, counter = self.free.pop(), self.endpoint.create_counter()
                token = self.endpoint.grant(self.under_grant, event.peer, PAGE, [slot * PAGES + i for i in range(PAGES)])
                self.clients[event.peer.id] = slot, token, counter
                given = {"slot": slot, "token": token.hex(), "counter": counter.id, "memory": self.memory.export().hex(),
                        "granted": self.under_grant.export().hex(), "stored": self.stored.export().hex()}
                event.peer.send(json.dumps(given).encode()).wait(PATIENCE)
            elif request == b"count":
                self.clients[event.peer.id][2].expect(int(rest[0])).wait(PATIENCE)
                event.peer.send(b"ok").wait(PATIENCE)
            elif request == b"echo":
                event.peer.fence().wait(PATIENCE)
                event.peer.send(rest[0]).wait(PATIENCE)
        elif isinstance(event, libweft.Notification):
            slot, *_ = self.clients[event.peer.id]
            bytes_ = self.granted if event.data == b"granted" else self.bytes
            got = os.pread(self.file.fileno(), SLOT, slot * SLOT) if event.data == b"stored" else bytes_[slot * SLOT:][:SLOT]
            right = got == pattern(event.value)
            self.wrong += not right
            event.peer.send(b"ok" if right else b"wrong").wait(PATIENCE)


class Client:
    """An endpoint that transfers from and to the servers at these addresses."""

    def __init__(self, fabric, addresses):
        self.endpoint, self.moved = opened(fabric), 0
        self.bytes = bytearray(2 * SLOT)  # what is sent, and what is read back
        self.local = self.endpoint.register(self.bytes)
        self.connections = [Connection(self, self.endpoint.connect(address).wait(PATIENCE)) for address in addresses]

    def answer(self, peer):
        while True:
            event = self.endpoint.wait_event(PATIENCE)
            if event is None or isinstance(event, libweft.PeerDown):
                raise AssertionError(f"{event} in place of an answer")
            if isinstance(event, libweft.Message) and event.peer.id == peer.id:
                return event.data

    def warm_up(self):
        """Uses all of the rings and connections between it and its servers once, as it would within an hour."""
        for connection in self.connections:
            connection.stored()
            for _ in range(600):
                connection.message()

    def round(self):
        random.choice(self.connections).round()

    def close(self):
        if random.random() < 0.5:
            for connection in self.connections:
                connection.peer.disconnect()
        self.endpoint.close()


class Connection:
    """What a client has of one server, and all kinds of transfers with it."""

    def __init__(self, client, peer):
        self.client, self.endpoint, self.peer, self.counted = client, client.endpoint, peer, 0
        peer.send(b"open").wait(PATIENCE)
        given = json.loads(client.answer(peer))
        self.first, self.counter, self.token = given["slot"] * PAGES, given["counter"], bytes.fromhex(given["token"])
        self.at = self.first * PAGE
        self.remote = peer.import_memory(bytes.fromhex(given["memory"]))
        self.granted = peer.import_memory(bytes.fromhex(given["granted"]))
        self.in_file = peer.import_memory(bytes.fromhex(given["stored"]))

    def round(self):
        ways = [self.range, self.pages, self.list, self.prepared, self.under_grant, self.stored, self.message, self.atomics,
                self.canceled]
        random.shuffle(ways)
        for way in ways:
            way()
            self.client.moved += 1

    # Each has the server compare what was written, and reads it back.

    def new(self):
        seed = random.getrandbits(63)
        self.client.bytes[:] = pattern(seed) + bytes(SLOT)
        return {"notify": seed}

    def check(self):
        answer = self.client.answer(self.peer)
        assert answer == b"ok", answer

    def same(self):
        bytes_ = self.client.bytes
        assert bytes_[:SLOT] == bytes_[SLOT:], "what was read back is not what was written"

    def shuffled(self):
        pages = random.sample(range(PAGES), PAGES)
        return pages, [self.first + page for page in pages], [PAGES + page for page in pages]

    def range(self):
        self.endpoint.write(self.client.local, self.remote, SLOT, remote_offset=self.at, **self.new()).wait(PATIENCE)
        self.check()
        self.endpoint.read(self.client.local, self.remote, SLOT, local_offset=SLOT, remote_offset=self.at).wait(PATIENCE)
        self.same()

    def pages(self):
        here, there, back = self.shuffled()
        self.endpoint.write_pages(self.client.local, self.remote, PAGE, local=here, remote=there, counter=self.counter,
                                  count_pages=True, **self.new()).wait(PATIENCE)
        self.check()
        self.counted += PAGES
        self.peer.send(b"count %d" % self.counted).wait(PATIENCE)
        self.check()
        self.endpoint.read_pages(self.client.local, self.remote, PAGE, local=back, remote=there).wait(PATIENCE)
        self.same()

    def list(self):
        here, there, back = self.shuffled()

        def entries(local):
            return [libweft.Entry(self.client.local, self.remote, PAGE, local_offset=i * PAGE, remote_offset=j * PAGE)
                    for i, j in zip(local, there)]
        self.endpoint.write_list(entries(here), **self.new()).wait(PATIENCE)
        self.check()
        self.endpoint.read_list(entries(back)).wait(PATIENCE)
        self.same()

    def prepared(self):
        here, there, back = self.shuffled()
        with self.endpoint.prepare_pages(self.client.local, self.remote, PAGE, local=here, remote=there) as prepared:
            prepared.write(**self.new()).wait(PATIENCE)
        self.check()
        with self.endpoint.prepare_pages(self.client.local, self.remote, PAGE, local=back, remote=there) as prepared:
            prepared.read().wait(PATIENCE)
        self.same()

    def under_grant(self):
        self.endpoint.write(self.client.local, self.granted, SLOT, remote_offset=self.at, grant=self.token,
                            notify_data=b"granted", **self.new()).wait(PATIENCE)
        self.check()
        self.endpoint.read(self.client.local, self.granted, SLOT, local_offset=SLOT, remote_offset=self.at,
                           grant=self.token).wait(PATIENCE)
        self.same()

    def stored(self):
        self.endpoint.write(self.client.local, self.in_file, SLOT, remote_offset=self.at, notify_data=b"stored",
                            durable=random.random() < 0.2, **self.new()).wait(PATIENCE)
        self.check()
        self.endpoint.read(self.client.local, self.in_file, SLOT, local_offset=SLOT, remote_offset=self.at).wait(PATIENCE)
        self.same()

    def message(self):
        data = random.randbytes(random.choice((1, 100, 1000, 4000)))
        self.peer.send(b"echo " + data).wait(PATIENCE)
        assert self.client.answer(self.peer) == data

    def atomics(self):
        before = self.remote.fetch_add(self.at, 7).wait(PATIENCE)
        assert self.remote.compare_swap(self.at, (before + 7) % 2**64, 1).wait(PATIENCE) == (before + 7) % 2**64
        assert self.remote.fetch_add(self.at, 0).wait(PATIENCE) == 1

    def canceled(self):
        operation = self.endpoint.write(self.client.local, self.remote, SLOT, remote_offset=self.at)
        operation.cancel()
        try:
            operation.wait(PATIENCE)
        except libweft.CanceledError:
            pass


class Heap(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33; `in_use` is of all arenas."""
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "free_chunks", "fast_chunks", "mapped_chunks", "mapped", "unused",
                                                     "fast", "in_use", "free", "top")]


def measured():
    """After the allocators have given back what they keep of freed memory: a leak is what cannot be given back. `heap`, kB that
    malloc's callers have, tells it from pages that are kept for little of what is on them."""
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    heap = 0
    if hasattr(libc, "mallinfo2"):
        libc.mallinfo2.restype = Heap
        now = libc.mallinfo2()
        heap = (now.in_use + now.mapped) // 1024
    status = pathlib.Path("/proc/self/status").read_text()
    rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return {"rss": rss, "heap": heap, "descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}


def live(pipe, number, warmup):
    """One of the four processes: servers, clients that stay, and a brief one each second but the tenth. A server remembers the
    last 1,024 peers that ended, with what they had: each has some 1,400 in the warm-up."""
    servers = [Server(fabric) for fabric in FABRICS]
    pipe.send([server.endpoint.address for server in servers])
    addresses = pipe.recv()  # of each process, for each fabric
    others = [i for i in range(PROCESSES) if i != number]
    staying = [Client(fabric, [addresses[i][f] for i in others]) for f, fabric in enumerate(FABRICS)]
    for client in staying:
        client.warm_up()
    moved, began = 0, time.monotonic()
    for second in range(1, 10**9):
        time.sleep(max(0, began + second + number / PROCESSES / 2 - time.monotonic()))
        if second % PERIOD == 0:
            pipe.send({"second": second, "moved": moved + sum(client.moved for client in staying),
                       "wrong": sum(server.wrong for server in servers), **measured()})
            continue
        if second % PERIOD == PERIOD - 1:
            continue  # until it is measured, what was closed has ended
        fabric = second % len(FABRICS)
        staying[fabric].round()
        brief = Client(FABRICS[fabric], [addresses[random.choice(others)][fabric]])
        brief.round()
        brief.close()
        moved += brief.moved
        for _ in range(5 * (second < warmup)):
            one = Client(FABRICS[fabric], [addresses[random.choice(others)][fabric]])
            one.round()
            one.close()


def be_killed(addresses):
    """A process with clients of two servers until it is killed, in the middle of a transfer or between two."""
    clients = [Client(fabric, [addresses[0][f]]) for f, fabric in enumerate(FABRICS)]
    while True:
        random.choice(clients).round()
        time.sleep(0.1)


def judged(samples):
    """The figures of some samples, of each process (seconds, what it measured)."""
    slopes, more = [], []
    for of_one in samples:
        at, rss = [t / 3600 for t, _ in of_one], [s["rss"] for _, s in of_one]
        slopes.append(statistics.linear_regression(at, rss).slope)
        for what in ("descriptors", "threads"):
            values = [s[what] for _, s in of_one]
            some = max(1, len(values) // 10)
            more.append(statistics.median_high(values[-some:]) - statistics.median_low(values[:some]))
    return {"soak_rss_slope_kb_per_h": round(max(slopes)), "soak_descriptors": max(more)}


def main():
    seconds = float(sys.argv[1]) * 3600
    sources = subprocess.check_output([pathlib.Path(__file__).with_name("sources.sh")], text=True).strip()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    (target / "soak").unlink(missing_ok=True)
    warmup = min(600, seconds / 3)
    # Of the peers that a server remembers after the warm-up few were killed, and later a fifth of the first process's. It gets one
    # in two seconds, so that it has forgotten all of the warm-up by then.
    settled = min(2700, seconds / 2)
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(PROCESSES):
        ours, theirs = spawn.Pipe()
        processes.append(spawn.Process(target=live, args=(theirs, number, warmup), daemon=True))
        processes[-1].start()
        theirs.close()  # so that its end is seen here
        pipes.append(ours)
    addresses = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(addresses)

    began, samples, figures, killed, shown = time.monotonic(), [[] for _ in pipes], {}, 0, 0
    while time.monotonic() - began < seconds:
        one = spawn.Process(target=be_killed, args=(addresses,), daemon=True)
        one.start()
        one.join(random.uniform(0.5, 3))
        one.kill()
        one.join()
        one.close()
        killed += 1
        last = [pipe.recv() for pipe in pipes]  # EOFError: that process has failed, and said why
        now = time.monotonic() - began
        if min(sample["second"] for sample in last) > settled:  # later than that by the clock, on a machine with much load
            for of_one, sample in zip(samples, last):
                of_one.append((now, sample))
        if len(samples[0]) > 2:
            figures = judged(samples)
        wrong = sum(sample["wrong"] for sample in last)
        if now - shown >= 60 or now >= seconds:
            shown = now
            each = ", ".join(f"{s['rss']} kB {s['heap']} kB heap {s['descriptors']} fds {s['threads']} threads" for s in last)
            print(f"{now / 60:.0f} min: {sum(s['moved'] for s in last)} transfers, {killed} killed, {wrong} wrong; {each}; "
                  + ", ".join(f"{name}: {value}" for name, value in figures.items()), flush=True)
        if wrong:
            sys.exit("bytes were not what had been written")
    if not figures:
        sys.exit(f"{len(samples[0])} measurements after the first {settled / 60:.0f} minutes: 3 are needed, {PERIOD} s apart")
    out = target / "figures"
    out.mkdir(parents=True, exist_ok=True)
    for name, value in figures.items():
        print(f"{name}: {value}")
        (out / name).write_text(f"{value}\n")
    grown = [f"{name} is {figures[name]}: at most {limit}" for name, limit in LIMITS.items() if figures[name] > limit]
    if grown:
        sys.exit("\n".join(grown))
    (target / "soak").write_text(f"{sources} {sys.argv[1]}\n")


if __name__ == "__main__":
    main()
