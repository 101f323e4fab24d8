#!/usr/bin/env python3
"""Counts the table of docs/first-hours.md:     tools/first-hours.py

Leaves in target/figures: `first_hour_tasks`, tasks that were done without reading the sources, and `first_hour_stumbles`, those that
cost over five minutes or gave a wrong result; both of the last round of each role.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def rows():
    """Task, minutes, whether it was done, stumbles, score."""
    table = (ROOT / "docs/first-hours.md").read_text().split("<!-- recorded: begin -->")[1].split("<!-- recorded: end -->")[0]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and re.fullmatch(r"\d+", cells[2]):
            yield cells


def main():
    figures = ROOT / "target/figures"
    figures.mkdir(parents=True, exist_ok=True)
    tasks = list(rows())
    done = sum(task[3] == "yes" for task in tasks)
    stumbles = sum(int(task[4]) for task in tasks)
    for name, value in (("first_hour_tasks", done), ("first_hour_stumbles", stumbles)):
        (figures / name).write_text(f"{value}\n")
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
