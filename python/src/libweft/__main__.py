"""What a program in C or C++ is built with, from the wheel: python -m libweft --cflags | --libs | --cmake-dir

    cc engine.c $(python -m libweft --cflags --libs) -o engine
    cmake -S . -B build -Dweft_DIR=$(python -m libweft --cmake-dir)
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import Dict, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
SAID: Dict[str, Tuple[Tuple[str, ...], str]] = {
    "cflags": (("-I" + os.path.join(HERE, "include"),), "flags for the compiler"),
    "libs": (("-L" + os.path.join(HERE, "lib"), "-lweft", "-Wl,-rpath," + os.path.join(HERE, "lib")), "flags for the linker"),
    "cmake-dir": ((os.path.join(HERE, "lib", "cmake", "weft"),), "the folder of the CMake package, weft_DIR"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m libweft", description="What C and C++ programs are built with.")
    for name, (_, what) in SAID.items():
        parser.add_argument("--" + name, action="store_true", help=what)
    asked = [words for name, (words, _) in SAID.items() if getattr(parser.parse_args(), name.replace("-", "_"))]
    if not asked:
        parser.error("which of " + ", ".join("--" + name for name in SAID))
    if not os.path.exists(os.path.join(HERE, "include", "weft.h")):
        sys.exit(f"{HERE} has no headers: it is a folder of sources, not an installed wheel")
    print(" ".join(shlex.quote(word) for words in asked for word in words))


if __name__ == "__main__":
    main()
