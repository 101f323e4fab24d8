"""What is done for each operation: compiled, or by ctypes."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

#: The compiled module. (Python without the interpreter's lock takes none that is made for the stable ABI.)
native: Any = None
if os.environ.get("WEFT_PYTHON_PURE") != "1":
    try:
        native = importlib.import_module("._native", __package__)
    except ImportError:
        pass

if TYPE_CHECKING or native is None:
    from ._pure import Leader, Pending
else:
    Leader, Pending = native.Leader, native.Pending
    os.register_at_fork(after_in_child=native.forked)

__all__ = ["Leader", "Pending", "native"]
