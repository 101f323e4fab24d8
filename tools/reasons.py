#!/usr/bin/env python3
"""Checks that what the compiler and the sanitizers are asked to believe has a reason of its own beside it.

A comment `SAFETY` argues for the block that it is above: it names what makes that one sound, and not that an earlier comment,
or the caller, answers for it. Each entry of a file of suppressions has a comment above it.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "libfabric-sys", "rust", "ffi-tests", "weft-bench", "fuzz", "loom")
NO_REASON = re.compile(r"(?:as|given|said|reasons?) above|same (?:reason|as before)|see above|\bditto\b|"
                       r"caller(?:'s)? (?:promise|has promised|guarantees|upholds the contract\.|upholds this)", re.I)
UNSAFE = re.compile(r"\bunsafe (?:\{|impl\b)")


def of_rust(path):
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines, 1):
        said = re.match(r"\s*// SAFETY:\s*(.*)", line)
        if not said:
            continue
        text, at = said[1], number
        while at < len(lines) and (more := re.match(r"\s*//(?!/) ?(.*)", lines[at])):
            text, at = f"{text} {more[1]}", at + 1
        if len(text) < 12 or NO_REASON.search(text):
            yield number, f"no reason of its own: {text}"
        elif not any(UNSAFE.search(below) or "unsafe" in below for below in lines[at:at + 12]):
            yield number, f"of no unsafe block: {text}"


def of_suppressions(path):
    said = inside = False
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if line.startswith("#"):
            said = True
        elif not line.strip():
            said = inside and said
        elif not said:
            yield number, f"no reason above: {line}"
        inside = (inside or line == "{") and line != "}"


def main():
    rust = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.rs")) if "target" not in path.parts]
    found = [(path, *one) for path in rust for one in of_rust(path)]
    found += [(path, *one) for path in sorted((ROOT / "tools").glob("*.supp")) for one in of_suppressions(path)]
    for path, number, what in found:
        print(f"{path.relative_to(ROOT)}:{number}: {what}")
    return 1 if found else 0


sys.exit(main())
