#!/usr/bin/env python3
"""Weft at work, in a minute: two processes of this host, the same over TCP, and two hosts with four rails of which one is
cut and comes back. Every byte that arrives is compared with what was sent.

    tools/demo.py      with python/src in PYTHONPATH and the library in WEFT_LIBRARY
"""

import json
import os
import queue
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE, PAGES, PLACES = 64 << 10, 256, 1024  # pages of one transfer, and the pages they are chosen from
PARTS = 4  # memory for this many transfers, so that the next one need not wait for the check of the last
RAILS, RATE, CUT, BACK, END = 4, "400mbit", 4.0, 8.0, 13.0
TRANSFERS = 100  # of the first two acts
BLOCK = random.Random(1).randbytes(1 << 20)


def page_of(number, at):
    """The bytes of a page: of each transfer, and of each page in it, others."""
    begin = (number * 7919 + at * 10_473) % (len(BLOCK) - PAGE)
    return BLOCK[begin:begin + PAGE]


def places_of(number, side):
    return random.Random(f"{number} {side}").sample(range(PLACES), PAGES)


def tell(**what):
    print(json.dumps(what), flush=True)


# The two processes.

def opened(fabric, rails):
    import libweft
    endpoint = libweft.Endpoint(fabric or None, rails=rails or None)
    memory = endpoint.allocate(PARTS * PLACES * PAGE)
    return libweft, endpoint, memory, endpoint.register(memory)


def receive(fabric, rails):
    libweft, endpoint, memory, registered = opened(fabric, rails)
    tell(address=endpoint.address.hex(), memory=registered.export().hex())
    wrong = good = 0
    while True:
        event = endpoint.wait_event()
        if isinstance(event, libweft.Notification):  # every byte of it is here
            number = event.value
            for at, place in enumerate(places_of(number, "right")):
                begin = (number % PARTS * PLACES + place) * PAGE
                if memory[begin:begin + PAGE].tobytes() == page_of(number, at):
                    good += 1
                else:
                    wrong += 1
            event.peer.send(number.to_bytes(8, "little"))
        elif isinstance(event, libweft.PeerDown):
            tell(good=good * PAGE, wrong=wrong)
            return


def send(fabric, rails, seconds):
    """Transfers, for these seconds, or TRANSFERS of them; of each rail how many bytes have left, ten times a second."""
    libweft, endpoint, memory, registered = opened(fabric, rails)
    theirs = json.loads(sys.stdin.readline())
    peer = endpoint.connect(bytes.fromhex(theirs["address"])).wait(20)
    remote = peer.import_memory(bytes.fromhex(theirs["memory"]))
    info = peer.info()
    names = [endpoint.rail_info(i).name for i in range(endpoint.info().rails)]
    tell(fabric=info.fabric, reason=info.reason, rails=names)
    number, checked, free, under_way, moving = 0, 0, set(range(PARTS)), {}, 0.0
    began = shown = time.monotonic()
    while True:
        more = number < TRANSFERS if seconds is None else time.monotonic() - began < seconds
        if not more and checked == number:
            break
        part = number % PARTS
        if more and part in free:
            free.remove(part)
            mine = [part * PLACES + place for place in places_of(number, "left")]
            for at, place in enumerate(mine):
                memory[place * PAGE:(place + 1) * PAGE] = page_of(number, at)
            there = [part * PLACES + place for place in places_of(number, "right")]
            under_way[number] = endpoint.write_pages(registered, remote, PAGE, local=mine, remote=there, notify=number)
            if seconds is None:  # one after the other, to see how long it takes
                done = under_way[number].wait()
                moving += (done.done_ns - done.submit_ns) / 1e9
            number += 1
        event = endpoint.wait_event(0 if more and number % PARTS in free else 0.02)
        while event is not None:
            if isinstance(event, libweft.Message):
                which = int.from_bytes(event.data, "little")
                under_way.pop(which).wait()  # raises if it failed
                checked += 1
                free.add(which % PARTS)
            elif isinstance(event, (libweft.RailDown, libweft.RailUp)):
                tell(rail=names[event.rail], up=isinstance(event, libweft.RailUp))
            event = endpoint.wait_event(0)
        if seconds is not None and time.monotonic() - shown >= 0.1:
            shown = time.monotonic()
            tell(at=shown - began, bytes=[endpoint.rail_statistics(i).bytes_written for i in range(len(names))])
    endpoint.close()  # before the line after which this process is killed: with WEFT_TRACE it writes the trace
    tell(transfers=number, seconds=moving)


# What runs and shows them.

class Shown:
    """A process of the above, whose lines of JSON come through a queue."""

    def __init__(self, space, *words):
        # The demonstration itself reports what the library would log about a cut.
        environment = {"WEFT_LOG": "error"} | os.environ
        self.process = subprocess.Popen([*space, sys.executable, __file__, *words], env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def next(self, seconds=60):
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            line = None
        if line is None:
            raise SystemExit("a process of the demonstration ended early: what it said is above")
        return line

    def pass_on(self, line):
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.wait()


def say(text=""):
    print(text, flush=True)


def pair(fabric, rails, seconds, spaces=((), ())):
    right = Shown(spaces[1], "receive", fabric, rails)
    left = Shown(spaces[0], "send", fabric, rails, *([str(seconds)] if seconds else []))
    left.pass_on(right.next())
    return left, right


def verdict(done, right):
    checked = right.next()
    assert not checked["wrong"], f"{checked['wrong']} pages are not what was sent"
    moved = done["transfers"] * PAGES * PAGE
    assert checked["good"] == moved, f"{checked['good']} bytes came, of {moved}"
    return moved


def act(title, fabric, rails, why):
    say(f"\n{title}")
    left, right = pair(fabric, rails, None)
    try:
        chosen = left.next()
        say(f"    Weft uses {chosen['fabric']!r}: {why.get(chosen['fabric'], chosen['reason'])}.")
        done = left.next()
        moved = verdict(done, right)
    finally:
        left.end()
        right.end()
    say(f"    {TRANSFERS} transfers of {PAGES} random pages of {PAGE >> 10} KiB: {moved / 1e9:.2f} GB at "
        f"{moved / done['seconds'] / 1e9:.1f} GB/s. Every byte was compared, and is right.")


def bar(value, most, width):
    eighths = min(width * 8, round(value / most * width * 8))
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(width)


def two_hosts(spaces):
    say(f"\n3 of 3: two hosts, joined by {RAILS} rails of 400 Mbit; one of them is cut, and comes back")
    live, line_rate = sys.stdout.isatty(), 50e6
    clear = "\r\033[K" if live else ""
    left, right = pair("tcp", "rail*", END, spaces)
    samples, marks, last, shown = [], [], None, -1.0
    steps = [(CUT, "down", "rail1 is cut"), (BACK, "up", "rail1 is plugged in again")]

    def note(at, text):
        marks.append((at, text))
        say(f"{clear}{at:6.1f} s  {text}")

    try:
        chosen = left.next()
        names = chosen["rails"]
        say(f"    Weft uses {chosen['fabric']!r} over {', '.join(names)}: {len(names)} network devices here, each of which reaches one there.")
        say("    Megabytes a second of each rail:")
        while True:
            report = left.next()
            if "rail" in report:
                note(last[0] if last else 0.0, f"Weft says: {report['rail']} is {'used again' if report['up'] else 'down; the others carry on'}")
            elif "at" in report:
                at, counts = report["at"], report["bytes"]
                if last:
                    rates = [max(0, now - before) / (at - last[0]) for now, before in zip(counts, last[1])]
                    samples.append((at, rates))
                    if live or at - shown >= 1:
                        text = "  ".join(f"{name} {bar(rate, line_rate, 5)}{rate / 1e6:4.0f}" for name, rate in zip(names, rates))
                        print(f"{clear}{at:6.1f} s  {text}   all {sum(rates) / 1e6:4.0f}", end="" if live else "\n", flush=True)
                        shown = at
                last = at, counts
                if steps and at >= steps[0][0]:
                    _, what, text = steps.pop(0)
                    subprocess.run([str(ROOT / "tools/lab.sh"), what, "1"], check=True)
                    note(at, text)
            else:
                if live:
                    say()
                moved = verdict(report, right)
                break
    finally:
        left.end()
        right.end()
    say(f"    {report['transfers']} transfers, {moved / 1e9:.2f} GB: none failed. Every byte was compared, and is right.")
    picture(samples, marks)
    path = ROOT / "target/demo.svg"
    path.write_text(svg(samples, marks, names))
    say(f"    The same as a picture, by rail: {path.relative_to(ROOT)}")


def picture(samples, marks):
    """The rate over time, in the terminal."""
    width = min(100, shutil.get_terminal_size((100, 24)).columns) - 14
    ends = samples[-1][0]
    columns = [[] for _ in range(width)]
    for at, rates in samples:
        columns[min(width - 1, int(at / ends * width))].append(sum(rates) / 1e6)
    values, before = [], 0.0
    for column in columns:
        before = sum(column) / len(column) if column else before
        values.append(before)
    most, height = RAILS * 50.0, 8
    say(f"\n    All rails together, MB/s ({most:.0f} is what {RAILS} rails can carry)")
    for row in range(height, 0, -1):
        eighths = [max(0, min(8, round((value / most * height - row + 1) * 8))) for value in values]
        label = f"{most * row / height:5.0f}" if row % 2 == 0 else " " * 5
        say(f"    {label} |{''.join(' ▁▂▃▄▅▆▇█'[part] for part in eighths)}")
    axis, names = ["-"] * width, [" "] * width
    for letter, (at, _) in zip("ABCDEFGH", marks):
        names[min(width - 1, int(at / ends * width))] = letter
    say(f"          +{''.join(axis)}\n           {''.join(names)}")
    for letter, (at, text) in zip("ABCDEFGH", marks):
        say(f"          {letter}  {at:4.1f} s  {text}")


def svg(samples, marks, names):
    """The rates over time, one rail upon the other."""
    width, height, x0, y0, ends, most = 860, 300, 60, 40, samples[-1][0], RAILS * 50e6
    colours = ["#0b6e99", "#c2661b", "#4f9d69", "#8a63a8"]
    x = lambda at: x0 + at / ends * (width - x0 - 20)
    y = lambda rate: y0 + height - rate / most * height
    parts, floor = [], [0.0] * len(samples)
    for rail, name in enumerate(names):
        top = [low + rates[rail] for low, (_, rates) in zip(floor, samples)]
        points = [f"{x(at):.1f},{y(value):.1f}" for (at, _), value in zip(samples, top)]
        points += [f"{x(at):.1f},{y(value):.1f}" for (at, _), value in reversed(list(zip(samples, floor)))]
        parts.append(f'<polygon points="{" ".join(points)}" fill="{colours[rail % 4]}"/>'
                     f'<text x="{x0 + 90 * rail}" y="20" fill="{colours[rail % 4]}">{name}</text>')
        floor = top
    for rate in range(0, RAILS + 1):
        parts.append(f'<text x="{x0 - 8}" y="{y(rate * 50e6) + 4:.0f}" text-anchor="end">{rate * 50}</text>')
    for at, text in marks:
        parts.append(f'<path d="M{x(at):.1f} {y0 - 8}V{y0 + height}" stroke="#222" stroke-dasharray="4 3"/>')
    for row, (at, text) in enumerate(marks):
        parts.append(f'<text x="{x0}" y="{y0 + height + 44 + 18 * row}">{at:.1f} s: {text}</text>')
    parts.append(f'<text x="{x0}" y="{y0 + height + 20}">0 s</text><text x="{width - 20}" y="{y0 + height + 20}" text-anchor="end">{ends:.0f} s</text>'
                 f'<text x="{width - 20}" y="20" text-anchor="end">MB/s of each rail, one upon the other</text>')
    tall = y0 + height + 60 + 18 * len(marks)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}" font-family="sans-serif" font-size="13">'
            f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n')


def story():
    say("Weft moves memory between processes. One process writes pages into another one's memory, at random places.")
    act("1 of 3: two processes on this host", "", "", {
        "host": "from memory to memory, the faster of the two ways that both processes have (host, tcp)"})
    act("2 of 3: the same two over TCP, as between hosts", "tcp", "lo", {"tcp": "we asked for it, over the loopback device"})
    why = subprocess.run(["bash", "-c", ". tools/lab.sh; lab_missing"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    if why:
        say(f"\n3 of 3: two hosts with {RAILS} rails: skipped, since {why}.")
        return 0
    return subprocess.run([str(ROOT / "tools/lab.sh"), "--rails", str(RAILS), "--rate", RATE, "--around",
                           f"exec '{sys.executable}' '{__file__}' hosts"], check=False).returncode


def main(what="story", *words):
    if what == "receive":
        return receive(*words)
    if what == "send":
        return send(*words[:2], float(words[2]) if len(words) > 2 else None)
    if what == "hosts":
        return two_hosts([["ip", "netns", "exec", os.environ[name]] for name in ("WEFT_LAB_LEFT", "WEFT_LAB_RIGHT")])
    return story()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
