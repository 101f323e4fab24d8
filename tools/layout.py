#!/usr/bin/env python3
"""Writes down the layout that include/weft.h has now:  tools/layout.py write

In C++ (ffi-tests/api/abi/layout.h): what is written there stays true. Rust's structs are those of the header, which is
made from them.
"""

import ctypes
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bindings import HEADER, ROOT, Header  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "python/src/libweft"))
import c  # noqa: E402

TOP = """// The layout that programs were built with. Made by tools/abi.sh write, which adds lines;
// after a release, no line goes or changes.
"""


def c_types(text):
    """The types of all fields as C has them, by struct and field."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    types = {}
    for body, struct in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.S):
        for field in body.split(";"):
            if m := re.fullmatch(r"(.*?)(\w+)(\[\w+\])?", " ".join(field.split())):
                types[struct, m[2]] = m[1].strip() + (m[3] or "")
    return types


def grows(struct):
    return struct._fields_[0][0] == "size"


def cpp(header, types):
    for name, struct in c.STRUCTS.items():
        yield f"\n{'GROWS' if grows(struct) else 'SIZE'}({name}, {ctypes.sizeof(struct)});\n"
        for field, *_ in struct._fields_:
            yield f"AT({name}, {field}, {getattr(struct, field).offset}, {types[name, field]});\n"
    yield "\n"
    for constant, value in header.constants.items():
        if not constant.startswith("VERSION_"):
            unsigned = "u" if int(value) >= 1 << 63 else ""
            yield f"VALUE(WEFT_{constant}, {value}{unsigned});\n"


def write(path, *parts):
    with open(os.path.join(ROOT, path), "w") as file:
        file.writelines(parts)


if __name__ == "__main__":
    if sys.argv[1:] != ["write"]:
        sys.exit("tools/layout.py write")
    with open(HEADER) as file:
        text = file.read()
    write("ffi-tests/api/abi/layout.h", TOP, *cpp(Header(text), c_types(text)))
