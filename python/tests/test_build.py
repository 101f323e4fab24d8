"""What is seen of a build at a terminal, which pip hides from it."""

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
import unittest
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "build_progress.py"
BUILD = ("import sys; print('   Compiling libc v1.0', '   Compiling weft v0.2 (/here)', 'warning: one', sep='\\n', file=sys.stderr); "
         "print('out'); sys.exit(3)")


def built(own: int) -> "subprocess.CompletedProcess[str]":
    """A build in a session whose terminal it is; -1: that has none."""
    def begin() -> None:
        os.setsid()
        if own >= 0:
            fcntl.ioctl(own, termios.TIOCSCTTY, 0)

    return subprocess.run([sys.executable, PROGRAM, sys.executable, "-c", BUILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL, preexec_fn=begin, timeout=60, pass_fds=[own] * (own >= 0),
                          env=dict(os.environ, WEFT_BUILD_PAUSE="0.001"))


class Progress(unittest.TestCase):
    def test_a_terminal_shows_what_pip_hides(self) -> None:
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, theirs)
        done = built(theirs)
        shown, until = "", time.monotonic() + 30
        while "not built" not in shown and time.monotonic() < until:
            if select.select([ours], [], [], 1)[0]:
                shown += os.read(ours, 1 << 16).decode()
        self.assertIn("libweft: cargo builds libweft.so", shown)
        self.assertRegex(shown, r"libweft: 0 s, crate 1: libc")
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("Compiling"), done.stderr.count("warning")), (3, "out\n", 2, 1))

    def test_without_a_terminal_the_output_is_all(self) -> None:
        done = built(-1)
        self.assertEqual((done.returncode, done.stdout, "libweft:" in done.stderr), (3, "out\n", False))


if __name__ == "__main__":
    unittest.main()
