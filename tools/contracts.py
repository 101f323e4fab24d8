#!/usr/bin/env python3
"""Keeps the texts of the Rust API and of the header together: each is read when the other changes.

    tools/contracts.py check               fails if a text has changed and its pair was not compared since
    tools/contracts.py show NAME...        both texts of functions of the Rust API (`Memory::deregister`)
    tools/contracts.py agree NAME...       they were compared, and promise the same; `all`: each that drifted

tools/contracts.txt has a line for each public function of src/api: what of the header it is of (functions, fields, constants)
and a checksum of all of these texts; or `-` and why the header has nothing like it. A status that a Rust text names as
an error must be one that the texts of its pair, or of what they refer to, name. Leaves in target/figures `contract_drift`:
functions whose text is not paired, or was not compared since it or its pair changed.
"""

import re
import sys
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tools/contracts.txt"


def words(comment):
    return " ".join(comment.split())


def header():
    """The comment of each function, type and constant, and of each field as `type.field`."""
    text = (ROOT / "include/weft.h").read_text()
    comment = r"/\*\*((?:(?!\*/).)*)\*/\s*"
    found = {name: words(said) for said, name in re.findall(comment + r"WEFT_API[^;]*?\b(weft_\w+)\(", text, re.S)}
    for what in (r"#define (WEFT_\w+)", r"typedef \w+ (weft_\w+);"):
        found.update((name, words(said)) for said, name in re.findall(comment + what, text, re.S))
    for said, struct, body in re.findall(f"(?:{comment})?" + r"typedef struct (weft_\w+) \{(.*?)^\} ", text, re.S | re.M):
        found[struct] = words(said)
        for of_field, field in re.findall(f"(?:{comment})?" + r"^ +[\w ]+?\**(\w+)(?:\[\w+\])?;", body, re.S | re.M):
            found[f"{struct}.{field}"] = words(of_field)
    return found


def rust():
    """The comment of each public function, without its examples, as `Type::function`."""
    found = {}
    for path in sorted((ROOT / "src/api").glob("*.rs")):
        if path.stem == "testing":
            continue
        owner, said = "", []
        for line in path.read_text().split("\n"):
            if begun := re.match(r"impl(?:<[^>]*>)? (?:[\w:]+ for )?(\w+)", line):
                owner = begun[1] + "::"
            elif line == "}":
                owner = ""
            if comment := re.match(r" */// ?(.*)", line):
                said.append(comment[1])
            elif function := re.match(r" *pub (?:const )?(?:unsafe )?fn (\w+)", line):
                # Functions of the parent module alone are `pub` in types that are `pub(super)`, and have no promises.
                if path.stem not in ("buffer", "parked", "words", "time"):
                    found[owner + function[1]] = words(re.sub(r"```.*?```", "", "\n".join(said), flags=re.S))
                said = []
            elif not line.strip().startswith("#["):
                said = []
    return found


def statuses(name, texts, pattern, seen=()):
    """What a text names as statuses, with those of the functions that it refers to."""
    text = texts.get(name, "")
    found = {status.replace("_", "").lower() for status in re.findall(pattern, text)}
    for other in re.findall(r"`(weft_\w+)`", text):
        if other in texts and other not in seen and other != name:
            found |= statuses(other, texts, pattern, (*seen, name))
    return found


def lines():
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            name, functions, rest = (line.split(" ", 2) + [""])[:3]
            yield name, functions, rest


def main(do="check", *names):
    c, r, drift, out = header(), rust(), [], []
    listed = {name: (functions.split(","), rest) for name, functions, rest in lines()}
    sums = {name: f"{zlib.crc32(' | '.join([r.get(name, ''), *(c.get(one, '') for one in functions)]).encode()):08x}"
            for name, (functions, _) in listed.items()}
    for name in sorted(r.keys() | listed.keys()):
        functions, rest = listed.get(name, ([], ""))
        if name not in listed:
            drift.append(f"{name} is not in {LIST.name}: name what of the header it is of")
        elif name not in r:
            drift.append(f"{name} is in {LIST.name}, but not in src/api")
        elif functions == ["-"]:
            if not rest:
                drift.append(f"{name}: say why the header has nothing like it")
        elif absent := [one for one in functions if one not in c]:
            drift.append(f"{name} is of {', '.join(absent)}, which the header does not have")
        else:
            ours = {status.lower() for status in re.findall(r"\(crate::Status::(\w+)\)", r[name])} - {"ok"}
            theirs = set().union(*(statuses(one, c, r"WEFT_ERR_([A-Z_]+)") for one in functions))
            # What the header's top says of every function.
            extra = ours - theirs - {"closed", "forked", "internal", "handle", "invalid", "again", "limit"}
            if extra:
                drift.append(f"{name} names {', '.join(sorted(extra))}, which {', '.join(functions)} does not")
            if rest != sums[name]:
                drift.append(f"{name}: its text or that of {', '.join(functions)} has changed (tools/contracts.py show {name})")
    if do == "show":
        for name in names:
            print(f"{name}: {r.get(name)}\n")
            print("\n\n".join(f"{one}: {c.get(one)}" for one in listed[name][0]))
        return 0
    if do == "agree":
        for line in LIST.read_text().splitlines():
            name, functions = (line.split(" ") + [""])[:2]
            is_pair = not line.startswith("#") and functions not in ("", "-")
            out.append(f"{name} {functions} {sums[name]}" if is_pair and (names == ("all",) or name in names) else line)
        LIST.write_text("\n".join(out) + "\n")
        return 0
    for line in drift:
        print(line)
    (ROOT / "target/figures").mkdir(parents=True, exist_ok=True)
    (ROOT / "target/figures/contract_drift").write_text(f"{len(drift)}\n")
    print(f"contract_drift: {len(drift)} (of {len(r)} functions of the Rust API)")
    return 1 if drift else 0


sys.exit(main(*sys.argv[1:]))
