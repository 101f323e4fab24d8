"""What a build with pip shows at a terminal, and what it needs."""

import fcntl
import importlib.util
import os
import pty
import select
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from pathlib import Path
from typing import Optional

PACKAGE = Path(__file__).resolve().parents[1]
PROGRAM = PACKAGE / "build_progress.py"
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


class Needs(unittest.TestCase):
    def program(self, name: str, text: str) -> None:
        path = Path(self.folder, name)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    @unittest.skipUnless(all(map(importlib.util.find_spec, ("hatchling", "elftools"))), "it needs hatchling and pyelftools")
    def test_pip_brings_cmake_where_none_runs(self) -> None:
        ask = "import hatchling.build as build; print(build.get_requires_for_build_wheel())"

        def required(cmake: Optional[str], **more: str) -> str:
            if cmake:
                self.program("cmake", cmake)
            environment = {name: value for name, value in os.environ.items() if name != "WEFT_DIST"}
            return subprocess.run([sys.executable, "-c", ask], cwd=PACKAGE, check=True, stdout=subprocess.PIPE, text=True, timeout=60,
                                  env=dict(environment, PATH=self.folder, **more)).stdout.strip()

        wanted = "['cmake>=3.20']"
        for cmake, requires in ((None, wanted), ("exit 1", wanted), ("echo cmake version 3.18.4", wanted), ("echo cmake version 3.20.0", "[]"),
                                ("echo cmake version 4.1.2", "[]")):
            with self.subTest(cmake):
                self.assertEqual(required(cmake), requires)
        self.assertEqual(required("exit 1", WEFT_DIST="a.tar.xz"), "[]")

    def test_what_is_missing_is_said_with_its_version(self) -> None:
        self.program("cargo", "echo cargo 1.999.0")
        for cmake, missing in (("exit 1", True), ("echo cmake version 3.18.4", True), ("echo cmake version 3.31.6", False)):
            self.program("cmake", cmake)
            done = subprocess.run([PACKAGE.parent / "tools/need.sh", "dist"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                                  env=dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}", WEFT_NO_INSTALL="1", CARGO="cargo"))
            self.assertEqual(("cmake (3.20 or newer" in done.stdout, "apt-get install cmake" in done.stdout), (missing, missing), done.stdout)
            self.assertNotIn("WEFT_NO_INSTALL", done.stdout)


if __name__ == "__main__":
    unittest.main()
