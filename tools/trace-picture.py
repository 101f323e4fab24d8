#!/usr/bin/env python3
"""Draws a trace (WEFT_TRACE) as docs/trace.svg shows one: operations, and what each rail has in flight.

    tools/trace-picture.py TRACE.json >PICTURE.svg
"""
import json
import re
import sys
from collections import defaultdict
from html import escape

WIDTH, LEFT, RIGHT, ROW, GAP = 920, 90, 20, 64, 14
STYLE = """
svg { font: 12px ui-sans-serif, system-ui, sans-serif; background: #fff }
text { fill: #24292f } .axis { stroke: #d0d7de } .bar { fill: #6db6d6 } .failed { fill: #c2661b }
.area { fill: #6db6d6; fill-opacity: .45; stroke: #0b6e99 } .mark { stroke: #c2661b; stroke-width: 1.5 } .word { fill: #a14f10 }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117 } text { fill: #e6edf3 } .axis { stroke: #3d444d } .bar { fill: #1f7ba8 } .failed { fill: #e8965a }
  .area { fill: #1f7ba8; stroke: #4cc2ff } .mark { stroke: #e8965a } .word { fill: #e8965a }
}
"""


def read(path):
    """Operations (begin, end, status), bytes in flight by rail, and marks (time, rail or None, name)."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    begun, operations, flights, marks = {}, [], defaultdict(list), []
    for event in events:
        kind, name, at = event["ph"], event["name"], event.get("ts", 0) / 1e6
        if kind == "b":
            begun[event["id"]] = at, event["args"]
        elif kind == "e":
            since, args = begun.pop(event["id"])
            operations.append((since, at, args))
        elif kind == "C":
            flights[int(re.search(r"\d+", name)[0])].append((at, event["args"]["bytes"]))
        elif name == "lane reset":
            marks.append((at, event["tid"] - 100, name))
        elif name in ("RAIL_DOWN", "RAIL_UP"):
            marks.append((at, event["args"]["rail"], name))
    return operations, flights, marks


def main():
    operations, flights, marks = read(sys.argv[1])
    begin = min(at for at, *_ in operations)
    end = max(at for _, at, _ in operations)
    parts = []

    def x(at):
        return LEFT + (min(max(at, begin), end) - begin) / (end - begin) * (WIDTH - LEFT - RIGHT)

    # Operations, each in the first line that is free.
    free = []
    for since, until, args in sorted(operations, key=lambda one: one[0]):
        line = next((i for i, busy in enumerate(free) if busy <= since), len(free))
        free[line:line + 1] = [until]
        kind = "failed" if args["status"] else "bar"
        parts.append(f'<rect class="{kind}" x="{x(since):.1f}" y="{20 + 9 * line}" width="{max(1, x(until) - x(since) - .5):.1f}" '
                     f'height="7"><title>{args["bytes"]} bytes, {1e3 * (until - since):.1f} ms, status {args["status"]}</title></rect>')
    y = 20 + 9 * len(free) + GAP
    parts.append(f'<text x="{LEFT - 8}" y="{y / 2 + 8:.0f}" text-anchor="end">operations</text>')

    most = max(value for points in flights.values() for _, value in points)
    for rail, points in sorted(flights.items()):
        base, path, last = y + ROW, f"M{x(begin):.1f} {y + ROW}", 0.0
        # The highest of each half pixel.
        columns = {}
        for at, value in points:
            column = round(2 * x(at))
            columns[column] = max(columns.get(column, 0), value)
        for column, value in sorted(columns.items()):
            path += f"H{column / 2:g}V{base - value / most * (ROW - 16):.1f}"
            last = column / 2
        parts.append(f'<path class="area" d="{path}V{base}H{last:g}Z"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{base - ROW / 3:.0f}" text-anchor="end">rail {rail}</text>')
        parts.append(f'<text x="{LEFT - 8}" y="{base - ROW / 3 + 15:.0f}" text-anchor="end" opacity=".6">0 - {most / 1e6:.1f} MB</text>')
        parts.append(f'<path class="axis" d="M{LEFT} {base}H{WIDTH - RIGHT}"/>')
        for at, where, name in marks:
            if where == rail:
                parts.append(f'<path class="mark" d="M{x(at):.1f} {y + 4}V{base}"/>')
                parts.append(f'<text class="word" x="{x(at) + 3:.1f}" y="{y + 12 + 12 * (name == "lane reset")}">{escape(name)}</text>')
        y = base + GAP
    for second in range(int(end - begin) + 1):
        parts.append(f'<text x="{x(begin + second):.1f}" y="{y + 4}" text-anchor="middle">{second} s</text>')
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 14}" width="{WIDTH}" height="{y + 14}">'
          f'<style>{STYLE}</style>{"".join(parts)}</svg>')


if __name__ == "__main__":
    main()
