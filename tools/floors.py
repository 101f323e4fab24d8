#!/usr/bin/env python3
"""Checks the floors of ARCHITECTURE.md: a file of src/ uses (`crate::`, `super::`) its own floor and those under it.

Each row of the table is a floor, the highest first. Fails on an upward use, and on files that import each other in
circles of more than two (tests left out), and on files that open descriptors without src/descriptor.rs. Leaves in target/figures, beside these two: `src_code_lines`, lines of code of
the library that ships, without comments and tests; `largest_file`, the most lines of a file of it, without tests at its
end; `lane_state_places`, in how many places the state of a lane lives (see `lane_places`); `commands`, how many kinds of
commands one thread sends to another; `revoke_files`, how many files the end of a grant goes through (see `ENDS_GRANTS`), and
`rail_failure_files`, the life of a failed rail (`OF_FAILURE`): these names as an argument list them; `impl_spread`, the most files
that methods of one type are in; `largest_struct_fields`.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"


def floors():
    """The floor of each first name after `crate::`, 0 for the highest; and how many there are."""
    text = (ROOT / "ARCHITECTURE.md").read_text().split("## Floors")[1].split("\n## ")[0]
    rows = [re.findall(r"`src/([\w*.]+)`", line.split("|")[1]) for line in text.splitlines() if line.startswith("| `")]
    names = {name: height for height, row in enumerate(rows) for name in row}
    ground = names.pop("*.rs")
    names.update({file.stem: ground for file in SRC.glob("*.rs")})
    return names


def module_of(file):
    parts = file.relative_to(SRC).with_suffix("").parts
    return parts[:-1] if parts[-1] in ("mod", "lib") else parts


def code(file):
    """Without comments, and without the tests at the end."""
    text = re.sub(r"//[^\n]*", "", file.read_text())
    return re.split(r"#\[cfg\((?:all\()?test[^\]]*\)\]\s*(?:pub )?mod \w+ \{", text)


def expanded(path):
    """`a::{b, c::{d, e}}`: a::b, a::c::d, a::c::e."""
    head, brace, rest = path.partition("{")
    if not brace:
        yield path
        return
    depth, item = 0, ""
    for c in rest:
        depth += (c == "{") - (c == "}")
        if depth < 0 or (c == "," and depth == 0):
            if item.strip():
                yield from expanded(head + item.strip())
            item = ""
            if depth < 0:
                return
        else:
            item += c


def uses(text, module):
    """The paths that a module's text names, from the root of the crate."""
    text = re.sub(r"\s+", " ", text)
    found = re.findall(r"\buse ((?!crate|super|self|std)[a-z_]\w*::[^;]+);", text)  # of a child: `use child::...`
    paths = [(module, path) for path in found]
    for match in re.finditer(r"(?<![\w:$])(crate|self|(?:super::)*super)::(\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}|"
                             r"[\w:]+(?:\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})?)", text):
        start, path = match.groups()
        if start == "crate":
            base = ()
        else:
            ups = start.count("super")
            if ups > len(module):
                continue
            base = module[:len(module) - ups]
        paths.append((base, path))
    for base, path in paths:
        for one in expanded(path):
            yield base + tuple(one.split(" as ")[0].strip().split("::"))


def circles(graph):
    """The strongly connected components (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for to in graph[node]:
            if to not in index:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in stack:
                low[node] = min(low[node], index[to])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(stack[at:])
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return found


#: Only in the libraries for tests and measurements, or in the crate for Rust programs.
NOT_SHIPPED = ("api/", "fabric/sim/", "fuzzing/", "device/fake")
#: Floors that know lanes, and what names one there.
OF_LANES = ("calls", "owner", "worker", "peer", "session", "transfer", "rail", "lane")
A_LANE = {"Lane", "LaneId", "LaneSlot", "Plan", "Pair", "Life"}
#: Names of fields that say how far a lane is in its life.
OF_LIFE = re.compile(r"^(state|stage|up|failed|resets?|resetting|returning|clos(ing|ed)|stop(s|ped|ping)|suspended|parked|quiesc(es|ing)"
                     r"|held(_for)?|ended|ending|drain(s|ing)|handshaking|newest)$")
STRUCT = re.compile(r"\b(struct|enum) (\w+)(?:<[^>{(]*>)? ?(?:\{((?:[^{}]|\{[^{}]*\})*)\}|\(([^;]*)\);)")
#: Shared with readers, or seen from elsewhere: what they point to is a place of its own.
POINTER = re.compile(r"\b(Arc|Rc|Weak|NonNull)<|&")


def lane_places(texts):
    """Where a lane's state lives: structs with a field that says how far one is in its life (`OF_LIFE`).

    A field counts in what is one lane's, that is a struct that names its peer's rail or holds a `Lane`, and whatever it
    contains by value; anywhere else if its type names lanes (`Vec<Plan>`). All of src/lane is one place, as is all of
    src/session, and Stripes with its Stripe. What is published for readers of figures (behind an `Arc`) is none.
    """
    fields = {}
    for file, text in texts.items():
        floor = file.relative_to(SRC).parts[0]
        if floor in OF_LANES:
            for _, name, body, alone in STRUCT.findall(re.sub(r"//[^\n]*|#\[[^\]]*\]", "", text)):
                named = re.findall(r"(\w+): ([^\n]+?),?(?:\n|$)", body)
                fields[floor, name] = named + [("", one) for one in [alone] if one]
    names = lambda type_: set(re.findall(r"\w+", type_))
    one = {at for at, all_ in fields.items() if at == ("rail", "Lane") or any(type_ == "Lane" for _, type_ in all_)}
    while True:  # And what these contain by value.
        inner = {name for at in one for _, type_ in fields[at] if not POINTER.search(type_) for name in names(type_)}
        more = {at for at in fields if at[1] in inner} - one
        if not more:
            break
        one |= more
    found = set()
    for at, all_ in fields.items():
        floor, name = at
        for field, type_ in all_:
            if OF_LIFE.match(field) and (at in one or names(type_) & A_LANE):
                found.add(floor if floor in ("lane", "session") else name.replace("Stripes", "Stripe"))
    return found


#: What opens or owns a descriptor; `Descriptor` and the functions of src/descriptor.rs keep it above the standard ones.
OPENS = re.compile(r"\bOwnedFd\b|\bFile::(?:open|create)\b|\bfs::(?:read|read_to_string|write)\(")


#: What only the life of a failed lane needs: its functions, their types, and the commands and events about it.
OF_FAILURE = re.compile(r"\b(lane_failed|watch_lanes|link_fails|Consequence|begin_reset|reset_lane|count_reset|lane_reset|ResetLane"
                        r"|ResetHere|reset_as_asked|peer_reset|note_peer_reset|finish_resets|redistribute|suspend|take_suspended|surrender"
                        r"|take_unsettled|FailedLanes|let_return|handshake_all|handshake_anyway|note_health|report_health|take_out)\b")


def without_comments(text):
    return re.sub(r"//[^\n]*", "", text)


TYPE = re.compile(r"^(?:pub(?:\([a-z]+\))? )?(?:struct|enum) (\w+)", re.M)
IMPL = re.compile(r"^impl(?:<[^{]*?>)? (\w+)(?:<[^{]*>)?(?:\s+where[^{]*)? \{", re.M)


def rail_failure_files(texts):
    return [file for file, text in sorted(texts.items()) if OF_FAILURE.search(without_comments(text))]


def impls(texts):
    """The files with methods of each type (`impl Type`, not `impl Trait for Type`), a type being its name and whether the
    file has one of that name of its own."""
    own = {file: set(TYPE.findall(text)) for file, text in texts.items()}
    shared = {name for names in own.values() for name in names if sum(name in others for others in own.values()) > 1}
    found = {}
    for file, text in texts.items():
        for name in set(IMPL.findall(text)):
            found.setdefault((name, file if name in shared and name in own[file] else None), []).append(file)
    return found


def fields_of_structs(texts):
    """How many fields each struct has; those of layouts that others define (`#[repr(C)]`) are left out."""
    return {(file, name): len(re.findall(r"^    (?:pub(?:\([a-z]+\))? )?\w+:", body, re.M))
            for file, text in texts.items()
            for head, name, body in re.findall(r"((?:^#\[[^\n]*\n)*)^(?:pub(?:\([a-z]+\))? )?struct (\w+)[^{;(]*\{\n(.*?)^\}", text, re.M | re.S)
            if "repr(C" not in head}


def shipped_files(files, of_tests):
    return [file for module, file in files.items() if not any(module[:n] in of_tests for n in range(9))
            and not str(file.relative_to(SRC)).startswith(NOT_SHIPPED)]


#: What ends a grant, or replaces keys for that, by name: the machine and what is asked of it, commands, calls of NICs,
#: frames, and what the peer does then.
ENDS_GRANTS = re.compile(
    r"\b(?:[rR]evocations?|Revoking|RevokeGrant|CountGrant|CloseKeys|close_keys|count_grant|revoke_grant|drop_grant|"
    r"replace_keys\w*|\w*[rR]ekeying\w*|rekey|expire_grants|forget_grants|begin_to_revoke|Withdraw|withdrawn|push_withdraw|"
    r"Kind::QuiesceRevoked|Kind::Keys|keys_came|of_revoked|join_revoked|knows_of_revoke|Command::Quiesced?|quiesced?(?=\()|quiesces|"
    r"struct Grants)\b|\brevoke(?=\()")


def revoke_files(texts):
    return sorted(file for file, text in texts.items()
                  if file != SRC / "lib.rs" and "capi" not in file.parts
                  and ENDS_GRANTS.search(re.sub(r"//[^\n]*", "", text)))


def commands(texts):
    """The variants of `enum Command`; of one that only wraps another enum, that enum's."""
    text = re.sub(r"//[^\n]*|#\[[^\]]*\]", "", "\n".join(texts.values()))
    structs = set(re.findall(r"\bstruct (\w+)", text))
    enums = {name: re.findall(r"(\w+)\s*(\([^)]*\)|\{[^}]*\})?\s*(?:,|$)", body.strip())
             for name, body in re.findall(r"\benum (\w+) \{((?:[^{}]|\{[^{}]*\})*)\}", text) if name not in structs}

    def count(name):
        inner = [(holds or "")[1:-1].strip() for _, holds in enums[name]]
        return sum(count(holds) if holds in enums else 1 for holds in inner)

    return count("Command")


def sizes(shipped):
    tests = re.compile(r"^#\[cfg\((?:all\()?test[^\]]*\)\]\s*(?:pub )?mod \w+ \{", re.M)
    texts = {file: tests.split(file.read_text())[0] for file in shipped}
    lines = [line.strip() for text in texts.values() for line in text.splitlines()]
    largest = max(texts, key=lambda file: texts[file].count("\n"))
    spread, fields = impls(texts), fields_of_structs(texts)
    widest, struct = max(spread, key=lambda type_: len(spread[type_])), max(fields, key=fields.get)
    said = {"largest_file": largest.relative_to(ROOT), "impl_spread": widest[0],
            "largest_struct_fields": f"{struct[1]} in {struct[0].relative_to(ROOT)}"}
    return {"src_code_lines": sum(1 for line in lines if line and not line.startswith("//")),
            "largest_file": texts[largest].count("\n"),
            "lane_state_places": len(lane_places(texts)),
            "commands": commands(texts),
            "revoke_files": len(revoke_files(texts)),
            "rail_failure_files": len(rail_failure_files(texts)),
            "impl_spread": len(spread[widest]),
            "largest_struct_fields": fields[struct]}, said


def main():
    sys.setrecursionlimit(10000)
    height = floors()
    files = {module_of(file): file for file in sorted(SRC.rglob("*.rs"))}
    upward, graph = [], {module: set() for module in files}
    of_tests = {module_of(file) + (name,) for file in files.values()
                for name in re.findall(r"#\[cfg\((?:(?:all\()?test|any\(test, fuzzing\))[^\]]*\)\]\s*(?:pub )?mod (\w+);",
                                    file.read_text())}
    for module, file in files.items():
        here = module[0] if module else "lib"
        if here not in height:
            sys.exit(f"src/{here} is on no floor of ARCHITECTURE.md")
        parts = code(file)
        for number, text in enumerate(parts):
            for path in uses(text, module if number == 0 else module + ("tests",)):
                if path and here != "lib" and height.get(path[0], len(height)) < height[here]:
                    upward.append(f"{file.relative_to(ROOT)} uses {'::'.join(path)}")
                while path and path not in files:
                    path = path[:-1]
                if number == 0 and path and path != module and not any(module[:n] in of_tests for n in range(9)):
                    graph[module].add(path)
    graph = {module: {to for to in tos if to in graph} for module, tos in graph.items()}
    wide = [circle for circle in circles(graph) if len(circle) > 2]
    for line in upward:
        print("upward:", line)
    for circle in wide:
        print("circle:", ", ".join(sorted("/".join(module) for module in circle)))
    shipped = shipped_files(files, of_tests)
    opens = [file for file in shipped if file.stem != "descriptor" and OPENS.search(code(file)[0])]
    for file in opens:
        print(f"opens: {file.relative_to(ROOT)} opens a file or owns a descriptor: src/descriptor.rs does that")
    measured, said = sizes(shipped)
    lists = {"revoke_files": revoke_files, "rail_failure_files": rail_failure_files}
    if sys.argv[1:] and sys.argv[1] in lists:
        files = lists[sys.argv[1]]({file: file.read_text() for file in shipped})
        return print(*(file.relative_to(ROOT) for file in files), sep="\n")
    figures = {"upward_imports": len(upward), "import_circles": sum(map(len, wide)), **measured}
    folder = ROOT / "target/figures"
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in figures.items():
        print(f"{name}: {value}" + (f" ({said[name]})" if name in said else ""))
        (folder / name).write_text(f"{value}\n")
    return 1 if upward or wide or opens else 0


sys.exit(main())
