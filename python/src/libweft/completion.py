"""How operations end."""

from __future__ import annotations

import os
from typing import NamedTuple, Optional

from . import c
from ._library import quick
from .errors import WeftError, error_of


class Completion(NamedTuple):
    """How an operation ended; the fields are those of `weft_completion`. Times are
    nanoseconds of `time.monotonic_ns()`."""

    kind: int
    status: int
    peer: int
    value: int
    bytes: int
    provider_errno: int
    rail: int
    entry: int
    submit_ns: int
    first_post_ns: int
    done_ns: int

    def error(self, what: str = "", why: Optional[str] = None) -> Optional[WeftError]:
        """The exception that says how it failed; None of a success. what: the operation, why: what became of
        the peer, in words."""
        if self.status >= 0:
            return None
        said = [quick.weft_status_text(self.status).decode()]
        if self.submit_ns and self.done_ns:
            said.append(f"{_duration(self.done_ns - self.submit_ns)} after it was submitted")
        if why:
            said.append(why)
        elif self.peer and f"{self.peer:#x}" not in what:
            said.append(f"peer {self.peer:#x}")
        if self.entry != 0xFFFF_FFFF_FFFF_FFFF:
            said.append(f"entry {self.entry}")
        if self.rail != 0xFFFF_FFFF:
            said.append(f"rail {self.rail}")
        if self.provider_errno:
            said.append(f"error {self.provider_errno} ({os.strerror(self.provider_errno)})")
        text = ", ".join(said)
        return error_of(self.status, f"{what}: {text}" if what else text, self.peer, self.provider_errno)

    def __repr__(self) -> str:
        said = [f"{quick.weft_status_name(self.status).decode()}, {self.bytes} bytes"]
        if self.peer:
            said.append(f"peer {self.peer:#x}")
        if self.value:
            said.append(f"value {self.value}")
        if self.submit_ns and self.done_ns:
            said.append(_duration(self.done_ns - self.submit_ns))
        return f"<libweft.Completion {_KINDS.get(self.kind, self.kind)}: {', '.join(said)}>"


_KINDS = {value: name[len("COMPLETION_"):] for name, value in vars(c).items() if name.startswith("COMPLETION_")}


def _duration(nanoseconds: int) -> str:
    for size, unit in ((10**9, "s"), (10**6, "ms")):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds / 1e3:.3g} us"
