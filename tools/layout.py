#!/usr/bin/env python3
"""Writes down the layout that include/weft.h has now:  tools/layout.py write

In C++ (ffi-tests/api/abi/layout.h) and in Rust (src/capi/layout.rs): what is written there stays true, and each side is
held to it by its own compiler.
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


def rust():
    modules = sorted(
        file[:-3] for file in os.listdir(os.path.join(ROOT, "src/capi"))
        if file.endswith(".rs") and file != "layout.rs"
        and re.search(r"^pub struct weft_", open(os.path.join(ROOT, "src/capi", file)).read(), re.M))
    used = [m for m in modules if any(f"pub struct {name} " in open(os.path.join(ROOT, "src/capi", m + ".rs")).read()
                                      for name in c.STRUCTS)]
    yield f"\nuse super::{{{', '.join(m + '::*' for m in used)}}};\nuse std::mem::{{offset_of, size_of}};\n"
    yield "\nconst _: () = {\n"
    for name, struct in c.STRUCTS.items():
        yield f"    assert!(size_of::<{name}>() {'>=' if grows(struct) else '=='} {ctypes.sizeof(struct)});\n"
        for field, *_ in struct._fields_:
            yield f"    assert!(offset_of!({name}, {field}) == {getattr(struct, field).offset});\n"
    yield "};\n"


def write(path, *parts):
    with open(os.path.join(ROOT, path), "w") as file:
        file.writelines(parts)


if __name__ == "__main__":
    if sys.argv[1:] != ["write"]:
        sys.exit("tools/layout.py write")
    with open(HEADER) as file:
        text = file.read()
    write("ffi-tests/api/abi/layout.h", TOP, *cpp(Header(text), c_types(text)))
    write("src/capi/layout.rs", TOP.replace("// ", "//! "), *rust())
