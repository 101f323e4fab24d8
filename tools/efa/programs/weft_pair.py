"""What mooncake_pair.py does, by Weft: pages between two processes over the emulated NICs, every byte checked.

Runs below `efa.sh run`: weft_pair.py [PAGES]. Prints the rate of writes.
"""

import os
import random
import sys
import time

import libweft

PAGE = 65536


def target(out, pages):
    endpoint = libweft.Endpoint(fabric="efa")
    memory = endpoint.register(bytearray(pages * PAGE))
    with os.fdopen(out, "w") as pipe:
        pipe.write(f"{endpoint.address.hex()} {memory.export().hex()}\n")
        pipe.flush()
    time.sleep(600)


def main():
    pages = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    size = pages * PAGE
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        target(write, pages)
        os._exit(0)
    os.close(write)
    try:
        address, descriptor = (bytes.fromhex(word) for word in os.fdopen(read).readline().split())
        endpoint = libweft.Endpoint(fabric="efa")
        content = random.Random(1).randbytes(size)
        back = bytearray(size)
        local, returned = endpoint.register(content), endpoint.register(back)
        peer = endpoint.connect(address).wait()
        remote = peer.import_memory(descriptor)
        mine, order = list(range(pages)), list(range(pages))
        random.Random(2).shuffle(order)
        best = 0
        for _ in range(5):
            begin = time.monotonic()
            endpoint.write_pages(local, remote, PAGE, local=mine, remote=order).wait()
            best = max(best, size / (time.monotonic() - begin))
        endpoint.read_pages(returned, remote, PAGE, local=mine, remote=order).wait()
        assert back == content, "not the bytes that were written"
        print(f"verified: {pages} pages of {PAGE}, writes {8 * best / 1e9:.2f} Gbps")
        sys.stdout.flush()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    os._exit(0)


if __name__ == "__main__":
    main()
