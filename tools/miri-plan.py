#!/usr/bin/env python3
"""Prints how Miri runs a test program that cargo has built for it, as a part of a shell script, with the folder that the
sources are in as a variable: tools/miri-plan.py FILE FOLDER, for tools/miri.sh."""

import json
import shlex
import sys

#: What crates ask for as they are compiled.
WANTED = ("CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_NAME", "CARGO_TARGET_TMPDIR", "OUT_DIR")


def text(value: "str | dict[str, list[int]]") -> str:
    return value if isinstance(value, str) else bytes(value["Unix"]).decode()


def quoted(value: str, folder: str) -> str:
    """For the shell; the folder may be another one there."""
    return '"$source"'.join(shlex.quote(part) if part else "" for part in value.split(folder)) or "''"


def main() -> None:
    file, folder = sys.argv[1:]
    with open(file, encoding="utf-8") as opened:
        run = json.load(opened)["RunWith"]
    arguments, given = [], iter(run["args"])
    for argument in given:
        value = next(given) if argument in ("-C", "--extern") else None
        # What Miri prints is read by people; and it reads what the other crates say of themselves alone.
        if argument.startswith(("--error-format", "--json", "--emit")) or value and value.startswith("incremental="):
            continue
        arguments += [argument] if value is None else [argument, value.replace(".rlib", ".rmeta")]
    named = [(text(name), text(value)) for name, value in run["env"]]
    environment = [f"{name}={value}" for name, value in named if name.startswith(WANTED)]
    for name, values in (("environment", environment), ("arguments", arguments)):
        print(f"{name}=({' '.join(quoted(value, folder) for value in values)})")


if __name__ == "__main__":
    main()
