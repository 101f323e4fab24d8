"""Runs a command that builds with cargo, and shows how far it is at the terminal, from which pip keeps a build's output without -v.

    python3 build_progress.py COMMAND...
"""

import os
import re
import subprocess
import sys
import time
from typing import List, Optional, TextIO

#: Seconds between two lines.
PAUSE = float(os.environ.get("WEFT_BUILD_PAUSE") or 10)


def terminal() -> Optional[TextIO]:
    """None where there is none, or it has the output already."""
    if os.isatty(2):
        return None
    try:
        return open("/dev/tty", "w")
    except OSError:
        return None


def run(command: List[str]) -> int:
    shown, began, said, crates = terminal(), time.monotonic(), 0.0, 0

    def show(text: str) -> None:
        if shown is not None:
            # pip has left its line open.
            print(f"\r\nlibweft: {text}", end="", file=shown, flush=True)

    show("cargo builds libweft.so, which takes some minutes; pip install -v shows each step")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as build:
        assert build.stderr is not None
        for line in build.stderr:
            sys.stderr.write(line)
            sys.stderr.flush()
            crate = re.match(r"\s*Compiling (\S+) ", line)
            crates += crate is not None
            now = time.monotonic()
            if crate and now - said >= PAUSE:
                show(f"{now - began:.0f} s, crate {crates}: {crate[1]}")
                said = now
    show(f"{'built' if build.returncode == 0 else 'not built'}, {time.monotonic() - began:.0f} s\r\n")
    return build.returncode


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
