#!/usr/bin/env python3
"""Makes python/src/libweft/c.py from include/weft.h:  tools/bindings.py write | check

It reads the few forms of C that cbindgen writes, and fails at any other.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADER = os.path.join(ROOT, "include/weft.h")
OUT = os.path.join(ROOT, "python/src/libweft/c.py")

TOP = '''"""weft.h as ctypes sees it: constants, structs and the types of functions.

Made from include/weft.h by tools/bindings.py: do not edit. Names are those of the header
without `weft_`, which has the contract.
"""

import ctypes
from ctypes import c_char, c_char_p, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, Final, List, Optional, Tuple


class Text(str):
    """A text of a struct. It was bytes in 0.2: it still equals them, and can be decoded."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other.decode("utf-8", "replace") if isinstance(other, bytes) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return str.__hash__(self)

    def decode(self, *_: str, **__: str) -> str:
        """Itself."""
        return str(self)


class Struct(ctypes.Structure):
    def __repr__(self) -> str:
        """Its fields, without those that are 0."""
        fields = ((name, getattr(self, name)) for name, *_ in self._fields_ if name not in ("size", "reserved"))
        return f"{type(self).__name__}({', '.join(f'{name}={_shown(value)}' for name, value in fields if _said(value))})"


def _said(value: Any) -> bool:
    return any(value) if isinstance(value, ctypes.Array) else bool(value)


def _shown(value: Any) -> str:
    if isinstance(value, ctypes.Array):
        return repr({i: one for i, one in enumerate(value) if one})
    return repr(value)


class Sized(Struct):
    """A struct that begins with its size; everything else is 0 unless named."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(size=ctypes.sizeof(self), **fields)


'''

BOTTOM = '''

class _Field:
    """A field of characters, as text."""

    def __init__(self, field: Any) -> None:
        self._field, self.offset, self.size = field, field.offset, field.size

    def __get__(self, struct: Any, _: Any = None) -> Any:
        return self if struct is None else Text(self._field.__get__(struct).decode("utf-8", "replace"))

    def __set__(self, struct: Any, value: Any) -> None:
        self._field.__set__(struct, value.encode() if isinstance(value, str) else value)


for _struct in STRUCTS.values():
    for _name, _kind in _struct._fields_:
        if issubclass(_kind, ctypes.Array) and _kind._type_ is c_char:
            setattr(_struct, _name, _Field(getattr(_struct, _name)))
'''

PLAIN = {
    "int32_t": "c_int32",
    "uint8_t": "c_uint8",
    "uint32_t": "c_uint32",
    "uint64_t": "c_uint64",
    "size_t": "c_size_t",
    "char": "c_char",
}


class Header:
    def __init__(self, text):
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S).replace("\\\n", " ")
        numbers = text.replace(" UINT64_MAX\n", f" {2**64 - 1}\n")
        self.constants = dict(re.findall(r"^#define WEFT_(\w+) (-?\d+)$", numbers, re.M))
        text = re.sub(r"^#.*$", "", text, flags=re.M)
        text = re.sub(r"\b(WEFT_API|WEFT_MUST_USE)\b", "", text).partition('extern "C" {')[2].rpartition("}")[0]
        self.types, self.callbacks, self.structs, self.functions = dict(PLAIN), {}, {}, {}
        # A struct has semicolons inside; this puts its body into one word.
        bodies = []
        text = re.sub(r"\{(.*?)\}", lambda m: bodies.append(m[1]) or f"BODY{len(bodies) - 1} ", text, flags=re.S)
        for statement in text.split(";"):
            statement = " ".join(statement.split())
            if statement:
                self.take(statement, bodies)

    def take(self, text, bodies):
        if m := re.fullmatch(r"typedef struct (\w+) BODY(\d+) \1", text):
            self.structs[m[1]] = [self.field(f) for f in bodies[int(m[2])].split(";") if f.strip()]
        elif re.fullmatch(r"typedef struct (\w+) \1", text):
            pass  # a handle, which only its pointer is seen of
        elif m := re.fullmatch(r"typedef (\w+) (\w+)", text):
            self.types[m[2]] = self.types[m[1]]
        elif m := re.fullmatch(r"typedef void \(\*(\w+)\)\((.*)\)", text):
            self.callbacks[m[1]] = [self.parameter(p) for p in m[2].split(",")]
        elif m := re.fullmatch(r"(.*?)(\w+)\((.*)\)", text):
            parameters = [] if m[3] == "void" else [self.parameter(p) for p in m[3].split(",")]
            self.functions[m[2]] = (self.type(m[1]), parameters)
        else:
            sys.exit(f"{HEADER}: what is this? {text}")

    def field(self, text):
        m = re.fullmatch(r"(.*?)(\w+)(?:\[(\w+)\])?", " ".join(text.split()))
        kind = self.type(m[1])
        if m[3]:
            kind += f" * {self.constants.get(m[3].replace('WEFT_', '', 1), m[3])}"
        return m[2], kind

    def parameter(self, text):
        return self.type(re.fullmatch(r"(.*?)\w+", " ".join(text.split()))[1])

    def type(self, text):
        base = text.replace("const ", "").replace("*", "").strip()
        stars = text.count("*")
        if stars == 0:
            return name(base) if base in self.callbacks or base in self.structs else self.types[base]
        if base == "char" and stars == 1 and "const" in text:
            return "c_char_p"
        if base in self.structs:
            pointed = name(base)
        elif base in self.types and base != "char":
            pointed = self.types[base]
        else:
            pointed, stars = "c_void_p", stars - 1
        for _ in range(stars):
            pointed = f"ctypes.POINTER({pointed})"
        return pointed


def name(c_name):
    return "".join(word.capitalize() for word in c_name.split("_")[1:])


def seen_as(kind):
    """What Python reads from a field of that type."""
    if kind == "c_void_p":
        return "Optional[int]"
    if kind == "c_char_p":
        return "Optional[bytes]"
    if kind.startswith("c_char *"):
        return "Text"
    return "int" if kind in PLAIN.values() else "Any"


def made():
    with open(HEADER) as file:
        header = Header(file.read())
    out = [TOP]
    version = ".".join(header.constants[f"VERSION_{part}"] for part in ("MAJOR", "MINOR", "PATCH"))
    out.append(f"#: Of the header.\nVERSION: Final = \"{version}\"\n")
    out += [f"{constant}: Final = {value}\n" for constant, value in header.constants.items()]
    for callback, parameters in header.callbacks.items():
        out.append(f"\n{name(callback)}: Any = ctypes.CFUNCTYPE(None, {', '.join(parameters)})\n")
    for struct, fields in header.structs.items():
        base = "Sized" if fields[0][0] == "size" else "Struct"
        out.append(f"\n\nclass {name(struct)}({base}):\n")
        out += [f"    {field}: {seen_as(kind)}\n" for field, kind in fields]
        out.append("    _fields_ = [\n")
        out += [f'        ("{field}", {kind}),\n' for field, kind in fields]
        out.append("    ]\n")
    out.append("\n\n#: What each function returns, and takes.\n")
    out.append("FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {\n")
    for function, (result, parameters) in header.functions.items():
        out.append(f'    "{function}": ({result}, [{", ".join(parameters)}]),\n')
    out.append("}\n")
    out.append("\n#: The structs, by their names in C.\n")
    out.append("STRUCTS: Dict[str, Any] = {\n")
    out += [f'    "{struct}": {name(struct)},\n' for struct in header.structs]
    out.append("}\n")
    out.append(BOTTOM)
    return "".join(out)


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        with open(OUT, "w") as file:
            file.write(made())
    elif sys.argv[1:] == ["check"]:
        with open(OUT) as file:
            if file.read() != made():
                sys.exit("python/src/libweft/c.py is not what include/weft.h makes: run make header")
        print("python/src/libweft/c.py is what include/weft.h makes.")
    else:
        sys.exit("tools/bindings.py write | check")
