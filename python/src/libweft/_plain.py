"""Classes whose manual is what they add to built-in ones: dir(), and so pydoc, leave out the methods of int and Exception."""

from __future__ import annotations

from enum import EnumMeta
from typing import List


class Plain(type):
    def __dir__(cls) -> List[str]:
        own = {name for kind in cls.__mro__ if kind.__module__.partition(".")[0] == "libweft" for name in vars(kind)}
        return sorted({name for name in own if not name.startswith("_")} | {*getattr(cls, "__members__", ()), "__doc__", "__module__"})


class PlainEnum(Plain, EnumMeta):
    pass
