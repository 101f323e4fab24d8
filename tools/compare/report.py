"""What the pieces of the comparison come to: tables, JSON, charts, and how many cells are lost."""

import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import time

import charts
from compare import CANNOT, GPUS, METRICS, PIECES, ROOT, SLOW, VARIANTS, WHAT, command, sizes

TARGET = ROOT / "target/compare"
#: A cell is lost if another's median is better by more than this, and the quartiles do not overlap.
MARGIN = 1.05
#: So many processors have a page of their own.
MANY = 16
COLOURS = {"Weft": 0, "Weft, its memory": 1, "NIXL UCX": 2, "NIXL UCX posix": 3, "NIXL UCX, 4 rails": 3, "NIXL LIBFABRIC": 5,
           "Mooncake": 4}


def gathered():
    """For each fabric, engine and cell the values of all rounds, or why there are none."""
    cells = {fabric: {name: {} for name in names} for fabric, names in VARIANTS.items()}
    for path in sorted(PIECES.glob("round-*.json")):
        fabric = path.stem.split("-")[1]
        for name, found in json.loads(path.read_text()).items():
            for key, values in found.items():
                place = cells[fabric][name].setdefault(key, {})
                for metric, value in values.items():
                    place.setdefault(metric, []).append(value)
    return {fabric: names for fabric, names in cells.items() if any(names.values())}


def rounds_of(fabric):
    return len(list(PIECES.glob(f"round-{fabric}-*.json")))


def quartiles(values):
    if len(values) < 2:
        return values[0], values[0], values[0]
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def judged(cells):
    """Each judged metric of each cell: (fabric, cell, metric, whose better median it is or "", whether the quartiles overlap, too)."""
    for fabric, names in cells.items():
        for key, ours in names["Weft"].items():
            for metric, (_, more, judge) in METRICS.items():
                if not judge or (metric == "p50_us" and "gbs" in ours):
                    continue
                others = {name: found[key][metric] for name, found in names.items()
                          if name not in ("Weft", "Weft, its memory") and metric in found.get(key, {}) and "why" not in found[key]}
                if metric not in ours or "why" in ours:
                    if others:
                        yield fabric, key, metric, next(iter(others)), False
                    continue
                if not others:
                    if any(key in found for name, found in names.items() if not name.startswith("Weft")):
                        yield fabric, key, metric, "", False
                    continue
                low, middle, high = quartiles(ours[metric])
                theirs = {name: quartiles(values) for name, values in others.items()}
                better = {name: median for name, (_, median, _) in theirs.items()
                          if (median > middle * MARGIN if more else median * MARGIN < middle)}
                apart = {name: median for name, median in better.items() if (theirs[name][0] > high if more else theirs[name][2] < low)}
                best = (max if more else min)(apart or better, key=(apart or better).get, default="")
                yield fabric, key, metric, best, bool(better) and not apart


def shown(found, metric):
    if not found:
        return "-"
    if "why" in found:
        return "cannot ¹" if not found["why"][0].startswith("never") else "never"
    if metric not in found:
        return "-"
    low, middle, high = quartiles(found[metric])
    digits = 0 if middle >= 100 else 1 if middle >= 10 else 2 if middle >= 0.1 else 3
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def table(head, rows):
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---" for _ in head) + " |"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def markdown(cells, limits, lost, versions):
    marks = {(fabric, key, metric) for fabric, key, metric, _ in lost}

    def row(fabric, names, key, metric, title):
        values = [shown(cells[fabric][name].get(key), metric) for name in names]
        if (fabric, key, metric) in marks:
            values[0] += " **lost**"
        return [title, *values]

    yield f"{time.strftime('%Y-%m-%d')}, {processor()}, {os.cpu_count()} CPUs, Linux {platform.release()}; medians of rounds in turns, quartiles in brackets."
    yield ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
    for fabric, names in cells.items():
        reasons, names = [], list(names)
        yield f"\n### {WHAT[fabric]}\n\n{rounds_of(fabric)} rounds.\n"
        many = [size for size, (_, count) in sizes(fabric).items() if count > 1]
        mine = limits.get(fabric, {})
        for metric, title, sizes_of in (("gbs", "GB/s", many), ("cpu_s_per_gb", "CPU seconds per GB, of both sides", sizes(fabric))):
            rows = [row(fabric, names, f"{operation} {size}", metric, f"{operation} {size}") +
                    ([f"{mine[name].get(size, mine[name].get('any', 0)):.2f}" for name in mine] if metric == "gbs" else [])
                    for operation in ("write", "read") for size in sizes_of]
            yield from table([title, *names, *(f"limit: {name}" for name in (mine if metric == "gbs" else ()))], rows)
            yield ""
        one = [size for size, (_, count) in sizes(fabric).items() if count == 1]
        yield from table(["one page, us", *names], [
            row(fabric, names, f"{operation} {size}", metric, f"{operation} {size}, {metric[:3]}")
            for operation in ("write", "read") for size in one for metric in ("p50_us", "p99_us")] + [
            row(fabric, names, "idle", "idle_p50_us", "write 1 x 4 KiB after 10 ms of idleness, p50")])
        yield ""
        yield from table(["otherwise", *names], [
            row(fabric, names, key, metric, f"{title}, {METRICS[metric][0]}")
            for key, metrics in (("first", {"first_ms": "first transfer after a connect, 256 x 64 KiB, with the connect",
                                            "submit_us": "the call that submits 1000 x 64 KiB from indexes",
                                            "resident_mib": "resident memory besides what is moved"}),
                                 ("slow", {"slow_gbs": f"one rail of the four at {SLOW}"}),
                                 ("down", {"gap_ms": "one link goes down: the longest pause", "after_gbs": "one link is down: afterwards"}),
                                 ("killed", {"known_s": "the target is killed: until the initiator has an error"}))
            for metric, title in metrics.items() if any(key in cells[fabric][name] for name in names)])
        for (where, name), why in CANNOT.items():
            if where == fabric:
                reasons.append(f"{name} is not here: {why}.")
        for name in names:
            whys = {}
            for key, found in cells[fabric][name].items():
                if "why" in found:
                    whys.setdefault(found["why"][0], []).append(key)
            reasons += [f"{name}, {', '.join(keys) if len(keys) < 8 else 'all'}: {why}." for why, keys in whys.items()]
        if reasons:
            yield "\n¹ " + " ".join(reasons)


def processor():
    found = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo", encoding="ascii").read())
    return found[1] if found else platform.machine()


def versions():
    import libweft
    found = {"Weft": libweft.library_version()}
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    if commit:
        found["Weft"] += f" ({commit})"
    for name, package in (("NIXL", "nixl-cu12"), ("Mooncake", "mooncake-transfer-engine-non-cuda")):
        try:
            found[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    for name, words in (("iperf3", ["iperf3", "--version"]), ("ucx_perftest", ["ucx_info", "-v"])):
        try:
            said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
            found[name] = re.search(r"\d+\.[\d.]+", said)[0]
        except (FileNotFoundError, TypeError):
            found[name] = "not installed"
    return found


def middle(found, metric):
    return None if not found or "why" in found or metric not in found else quartiles(found[metric])[1]


def stem(cells):
    return "compare-gpu" if set(cells) & set(GPUS) else "compare-many" if (os.cpu_count() or 1) >= MANY else "compare"


def draw(cells, limits):
    """Charts: rates of writes, one page, processor time."""
    def panel(fabric, several, operations, metric, unit, limited=False):
        keys = [f"{operation} {size}" for operation in operations for size, (_, count) in sizes(fabric).items() if (count > 1) == several]
        names = [name for name in cells[fabric] if any(middle(cells[fabric][name].get(key), metric) for key in keys)]
        groups = []
        for key in keys:
            rows = [(name, middle(cells[fabric][name].get(key), metric), False) for name in names]
            for name, by_size in (limits.get(fabric, {}).items() if limited else ()):
                if name.startswith(("memcpy", "plain", "one")):
                    rows.append((name, by_size.get(key.partition(" ")[2], by_size.get("any")), True))
            groups.append((key, rows))
        return WHAT[fabric], unit, groups

    pictures = {
        "rate": [panel(fabric, True, ("write",), "gbs", "GB/s, more is better", True) for fabric in cells],
        "page": [panel(fabric, False, ("write", "read"), "p50_us", "us, median, less is better") for fabric in cells],
        "cpu": [panel(fabric, True, ("write",), "cpu_s_per_gb", "CPU seconds per GB of both sides, less is better") for fabric in cells],
    }
    for name, panels in pictures.items():
        for theme in charts.THEMES:
            yield f"{stem(cells)}-{name}-{theme}.svg", charts.bars(panels, theme, COLOURS)


def record(name, text, files):
    """Into docs/: the charts, the figures, and the tables behind the page's last marker."""
    for name, content in files.items():
        (ROOT / "docs" / name).write_text(content)
    page = ROOT / f"docs/{name}.md"
    head, marker, _ = page.read_text().partition("<!-- figures: begin -->\n")
    assert marker, f"docs/{name}.md has no place for figures"
    page.write_text(head + marker + "\n" + text + "\n<!-- figures: end -->\n")


def main():
    cells = gathered()
    limits = {path.stem.split("-")[1]: json.loads(path.read_text()) for path in PIECES.glob("limits-*.json")}
    verdicts = list(judged(cells))
    worse = [verdict for verdict in verdicts if verdict[3]]
    lost = [verdict[:4] for verdict in worse if not verdict[4]]
    found = versions()
    text = "\n".join(markdown(cells, limits, lost, found))
    name = stem(cells).replace("-", "_")
    figures = {f"{name}_cells_lost": len(lost), f"{name}_cells_worse": len(worse), f"{name}_cells_judged": len(verdicts)}
    result = {
        "date": time.strftime("%Y-%m-%d"), "cpus": os.cpu_count(), "processor": processor(), "rounds": {fabric: rounds_of(fabric) for fabric in cells}, "versions": found,
        "commands": {fabric: {name: command(fabric, name) for name in names} for fabric, names in cells.items()},
        "figures": figures, "lost": [dict(zip(("fabric", "cell", "metric", "to"), verdict)) for verdict in lost], "limits": limits, "cells": cells,
    }
    files = dict(draw(cells, limits)) | {f"{stem(cells)}.json": json.dumps(result, indent=1) + "\n"}
    for name, content in files.items():
        (TARGET / name).write_text(content)
    (ROOT / f"target/{stem(cells)}.json").write_text(files[f"{stem(cells)}.json"])
    (TARGET / f"{stem(cells)}.md").write_text(text + "\n")
    print(text)
    print("\nWhat was run, once for each side:")
    for fabric, commands in result["commands"].items():
        for name, words in commands.items():
            print(f"    {fabric}, {name}: {words}")
    print(f"\nLost: another's median is better by over {(MARGIN - 1) * 100:.0f} %, and the quartiles do not overlap")
    for fabric, key, metric, name in lost:
        print(f"    {fabric}, {key}, {METRICS[metric][0]}: to {name}, {shown(cells[fabric][name].get(key), metric)} "
              f"against {shown(cells[fabric]['Weft'].get(key), metric)}")
    target = ROOT / "target/figures"
    target.mkdir(parents=True, exist_ok=True)
    for name, value in figures.items():
        (target / name).write_text(f"{value}\n")
        print(f"{name}: {value}")
    print(f"target/{stem(cells)}.json, target/compare/{stem(cells)}-*.svg")
    if os.environ.get("RECORD"):
        record(stem(cells), text, files)
    return 0
