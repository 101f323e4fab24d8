#!/usr/bin/env python3
"""Writes the licences of everything that is inside libweft.so and weft-bench: of their crates with their texts.

Rust's own library is named; its notices come with Rust, in share/doc/rust/COPYRIGHT-library.html.

    tools/licences.py [--target TRIPLE] >THIRD_PARTY

Fails if a crate says nothing about its licence, or has no text of it.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

CARGO = os.environ.get("CARGO", "cargo")
ROOT = pathlib.Path(__file__).resolve().parent.parent


def said_by(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def inside(target):
    """The packages that both are linked from: no build scripts, no macros, no tests."""
    tree = said_by(CARGO, "tree", "--locked", "--package", "weft", "--package", "weft-bench", "--edges", "normal,no-proc-macro", "--target", target,
                   "--prefix", "none", "--format", "{p}")
    linked = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    metadata = json.loads(said_by(CARGO, "metadata", "--format-version", "1", "--locked", "--filter-platform", target))
    packages = [p for p in metadata["packages"] if (p["name"], "v" + p["version"]) in linked]
    assert len(packages) == len(linked), linked
    return sorted(packages, key=lambda p: p["name"])


def texts(folder):
    names = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "UNLICENSE", "NOTICE")
    return [f for f in sorted(folder.iterdir()) if f.is_file() and f.name.upper().startswith(names)]


def of_package(package):
    licence = package["license"]
    if not licence:
        sys.exit(f"{package['name']} names no licence")
    found = texts(pathlib.Path(package["manifest_path"]).parent)
    if not found:
        sys.exit(f"{package['name']} has no text of its licence, {licence}")
    return f"{package['name']} {package['version']}", licence, package["repository"], found


def of_rust():
    return (said_by("rustc", "--version").strip(), "MIT OR Apache-2.0, and of its parts: COPYRIGHT-library.html",
            "the standard library of https://github.com/rust-lang/rust", [])


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--target", help="Rust's name of the machine it is built for; this one")
    target = arguments.parse_args().target
    if not target:
        target = next(l.split()[1] for l in said_by("rustc", "-vV").splitlines() if l.startswith("host:"))
    ours = {"weft", "weft-libfabric-sys", "libweft", "weft-bench"}
    parts = [of_package(p) for p in inside(target) if p["name"] not in ours] + [of_rust()]

    print("libweft.so and weft-bench are under Apache-2.0 or MIT, as you like. Inside them are:\n")
    for name, licence, where, _ in parts:
        print(f"    {name}: {licence} ({where})")
    whose = {}  # a text, and whose licence it is
    for name, _, _, found in parts:
        for file in found:
            text = file.read_text(encoding="utf-8", errors="replace").strip()
            whose.setdefault(text, []).append(name)
    for text, names in whose.items():
        print(f"\n{'-' * 80}\n{', '.join(names)}\n{'-' * 80}\n\n{text}")


if __name__ == "__main__":
    main()
