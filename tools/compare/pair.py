"""Two processes of the comparison, and what is asked of them."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATIENCE = 60.0


class Failed(Exception):
    """What an engine said, or that it said nothing."""


class Process:
    def __init__(self, engine, settings, size, environment, space=()):
        self.process = subprocess.Popen(
            [*space, sys.executable, str(HERE / "side.py"), engine, json.dumps(settings), str(size)],
            env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True)
        os.set_blocking(self.process.stdout.fileno(), False)
        os.set_blocking(self.process.stderr.fileno(), False)
        self.rest, self.said = b"", b""

    def line(self, patience):
        """Its next line; what it says on stderr is kept, the end of it."""
        until = time.monotonic() + patience
        while b"\n" not in self.rest:
            left = until - time.monotonic()
            if left <= 0:
                raise Failed(f"no answer within {patience:.0f} s")
            ready = select.select([self.process.stdout, self.process.stderr], [], [], left)[0]
            if self.process.stderr in ready:
                more = self.process.stderr.read()
                self.said = (self.said + (more or b""))[-4000:]
            if self.process.stdout in ready:
                more = self.process.stdout.read()
                if more == b"":
                    said = self.said.decode(errors="replace").strip().splitlines()
                    raise Failed(f"its process ended ({self.process.wait()}){': ' + said[-1][:200] if said else ''}")
                self.rest += more or b""
        line, _, self.rest = self.rest.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"][:300])
        return answer

    def send(self, what, *arguments, **named):
        self.process.stdin.write(json.dumps([what, arguments, named]).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, patience=PATIENCE):
        return self.line(patience)["reply"]

    def ask(self, what, *arguments, **named):
        self.send(what, *arguments, **named)
        return self.answer()

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self):
        self.kill()
        self.process.wait()
        for stream in self.process.stdin, self.process.stdout, self.process.stderr:
            with contextlib.suppress(OSError):
                stream.close()


class Pair:
    """An initiator and a target of one kind, connected. `sides`: for each its engine's settings, its environment and the
    words before its command."""

    def __init__(self, engine, size, initiator, target):
        self.target = Process(engine, target["settings"], size, target["environment"], target["space"])
        try:
            theirs = self.target.answer()
            self.initiator = Process(engine, initiator["settings"], size, initiator["environment"], initiator["space"])
            try:
                self.target.ask("know", self.initiator.answer())
                self.connected = self.initiator.ask("connect", theirs)
            except BaseException:
                self.initiator.close()
                raise
        except BaseException:
            self.target.close()
            raise

    def close(self):
        self.initiator.close()
        self.target.close()
