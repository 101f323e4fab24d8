"""Pages of one torch tensor on a GPU to pages of another one, without a copy in Python.

    WEFT_LIBRARY=libweft.so.0 python3 gpu_pages.py
"""
import ctypes
import os
import sys
from ctypes import POINTER, Structure, byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

import torch

lib = ctypes.CDLL(os.environ.get("WEFT_LIBRARY", "libweft.so.0"))
lib.weft_last_error.restype = c_char_p
WEFT_MEMORY_CUDA, WEFT_COMPLETION_WRITE = 2, 1


class Sized(Structure):
    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


class Range(Structure):
    _fields_ = [("address", c_void_p), ("len", c_uint64)]


class MemoryArgs(Sized):
    _fields_ = [("size", c_uint32), ("access", c_uint32), ("rails", c_uint64), ("kind", c_uint32), ("device", c_uint32)]


class PageSide(Structure):
    _fields_ = [("pages", POINTER(c_uint32)), ("page_stride", c_uint64), ("offset", c_uint64),
                ("layer_stride", c_uint64), ("first_range", c_uint32), ("range_step", c_uint32)]


class Pages(Sized):
    _fields_ = [("size", c_uint32), ("layer_count", c_uint32), ("page_len", c_uint64), ("page_count", c_uint64),
                ("local", PageSide), ("remote", PageSide)]


class Completion(Structure):
    _fields_ = [("kind", c_int32), ("status", c_int32), ("rest", c_uint64 * 15)]


def check(status):
    if status < 0:
        raise RuntimeError(lib.weft_last_error().decode())
    return status


def register(endpoint, tensor):
    """The tensor's own memory; keep the tensor for as long as it is registered."""
    memory = c_void_p()
    ranges = (Range * 1)(Range(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
    args = MemoryArgs(kind=WEFT_MEMORY_CUDA, device=tensor.device.index + 1)
    check(lib.weft_memory_register(endpoint, ranges, c_size_t(1), byref(args), byref(memory)))
    return memory


def blob(function, of):
    buffer, length = ctypes.create_string_buffer(65536), c_size_t()
    check(function(of, buffer, c_size_t(len(buffer)), byref(length)))
    return buffer.raw[:length.value]


def main():
    if not torch.cuda.is_available():
        print("SKIPPED: no GPU here")
        return 77
    here, there, peer, remote = c_void_p(), c_void_p(), c_uint64(), c_void_p()
    check(lib.weft_endpoint_open(None, byref(here)))
    check(lib.weft_endpoint_open(None, byref(there)))
    pages, page = 128, 32768
    source = torch.randn(pages, page // 4, device="cuda:0")
    target = torch.zeros(pages, page // 4, device=f"cuda:{torch.cuda.device_count() - 1}")
    mine, theirs = register(here, source), register(there, target)
    address, descriptor = blob(lib.weft_endpoint_address, there), blob(lib.weft_memory_export, theirs)
    check(lib.weft_peer_connect(here, address, c_size_t(len(address)), None, byref(peer)))
    check(lib.weft_remote_memory_import(here, peer, descriptor, c_size_t(len(descriptor)), byref(remote)))

    order = torch.randperm(pages)
    what = Pages(page_len=page, page_count=pages)
    what.remote.pages = (c_uint32 * pages)(*order.tolist())
    torch.cuda.synchronize()  # the source is filled; weft_watch_alloc does without waiting
    check(lib.weft_write_pages(here, mine, remote, byref(what), None, None))
    done = Completion()
    while done.kind != WEFT_COMPLETION_WRITE:  # PEER_UP comes first
        check(lib.weft_wait(here, byref(done), c_uint32(1), c_uint64(10_000_000_000)))
    if done.status != 0:
        raise RuntimeError(f"the write ended with status {done.status}")
    assert torch.equal(target.cpu()[order], source.cpu())
    print(f"{pages} pages of {page // 1024} KiB from {source.device} to {target.device}")
    check(lib.weft_endpoint_shutdown(here, c_uint64(0)))
    check(lib.weft_endpoint_shutdown(there, c_uint64(0)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
