#!/usr/bin/env python3
"""Adds what tests left in target/tested to docs/support.md: in each file, named as a column, a version on each line."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE, TESTED = ROOT / "docs/support.md", ROOT / "target/tested"


def row(text):
    return [cell.strip() for cell in text.strip().strip("|").split("|")]


def order(version):
    return [int(number) for number in re.findall(r"\d+", version)]


def main():
    text = PAGE.read_text(encoding="utf-8")
    before, table, after = re.split(r"(?<=begin -->\n)|(?=<!-- tested: end)", text)
    names, _, *rows = map(row, table.strip().splitlines())
    version = re.search(r'^version = "(\d+\.\d+)', (ROOT / "Cargo.toml").read_text(encoding="utf-8"), re.M)[1]
    if rows[0][0] != version:
        rows.insert(0, [version] + [""] * (len(names) - 1))
    for at, name in enumerate(names[1:], 1):
        file = TESTED / name
        found = set(file.read_text(encoding="utf-8").split() if file.exists() else []) | set(re.findall(r"[\d.]+", rows[0][at]))
        rows[0][at] = ", ".join(sorted(found, key=order))
    lines = [names, ["---"] * len(names), *rows]
    PAGE.write_text(before + "".join(f"| {' | '.join(line)} |\n" for line in lines) + after, encoding="utf-8")


if __name__ == "__main__":
    main()
