"""weft.h for ctypes, as the package in python/ declares it: its names without the prefixes that say
of what they are. A call that fails raises `Error`."""

import ctypes
import os
import sys
from ctypes import byref, c_size_t, c_void_p

os.environ["WEFT_LIBRARY"] = os.environ["WEFT_TEST_LIBRARY"]
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../python/src"))

from libweft import c  # noqa: E402
from libweft._library import Library  # noqa: E402
from libweft.c import *  # noqa: E402,F401,F403

#: Not the package's own, for its functions raise.
lib = Library(ctypes.CDLL)

for _name, _value in vars(c).items():
    for _prefix in ("ERR_", "COMPLETION_"):
        if _name.startswith(_prefix):
            globals()[_name[len(_prefix):]] = _value


class Error(Exception):
    pass


def _check(status, function, _args):
    if status < 0:
        name = lib.weft_status_name(status).decode()
        raise Error(f"{function.__name__}: {name}: {lib.weft_last_error().decode()}")
    return status


for _name, (_result, _) in c.FUNCTIONS.items():
    # The tests look at what these return themselves.
    if _result is ctypes.c_int32 and _name not in ("weft_queue_arm", "weft_topology", "weft_status_category"):
        getattr(lib, _name).errcheck = _check


def open_endpoint(secret=None):
    fabric = os.environ.get("WEFT_TEST_FABRIC", "tcp").encode()
    endpoint = c_void_p()
    config = c.EndpointConfig(fabric=fabric, rails=b"lo" if fabric == b"tcp" else None,
                              secret=secret and ctypes.cast(secret, c_void_p), secret_len=len(secret or b""))
    lib.weft_endpoint_create(byref(config), byref(endpoint))
    return endpoint


def blob(function, handle):
    """An address or a descriptor, as bytes."""
    length = c_size_t()
    function(handle, None, 0, byref(length))
    buffer = ctypes.create_string_buffer(length.value)
    function(handle, buffer, length.value, byref(length))
    return buffer.raw


def register(endpoint, buffers):
    ranges = (c.MemoryRange * len(buffers))()
    for r, buffer in zip(ranges, buffers):
        r.address, r.len = ctypes.addressof(buffer), ctypes.sizeof(buffer)
    memory = c_void_p()
    lib.weft_memory_register(endpoint, ranges, len(buffers), None, byref(memory))
    return memory
