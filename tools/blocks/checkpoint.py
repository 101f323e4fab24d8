# One of eight ranks; `gather` plays the others, which save the other rows. The store is in this process.
import ctypes
import tempfile

from libweft.checkpoint import Store

folder = tempfile.TemporaryDirectory()
store = Store(folder.name)
manifests, rank = [store.manifest()], 0
tensor = bytearray(range(256)) * (4096 * 1024 * 4 // 256)
rows = tensor[512 * 4096:1024 * 4096]


class Whole(ctypes.c_float * (4096 * 1024)):
    dtype, shape = "float32", (4096, 1024)


whole = Whole()


def train():
    pass


def gather(part):
    parts = [part]
    for other, first in enumerate((0, *range(1024, 4096, 512)), 1):
        shard = Shard("w", "F32", (4096, 1024), first, first + 512, tensor[first * 4096:(first + 512) * 4096])
        with Checkpoints(manifests, rank=other, ranks=8) as others:
            parts.append(others.save(1000, [shard]).wait())
    return parts


BLOCKS
store.close()
folder.cleanup()
assert step == 1000 and bytes(whole) == tensor
