#!/usr/bin/env python3
"""Counts idioms that Weft does not use.     tools/idioms.py [FOLDER]...: only what lies there, without a verdict

`of`: a function, variable, field or module of that name, which says nothing; one for each function that has it.
`for_each`: an `Option` taken for an iterator, where `if let` says what is meant.
`tuple`: parameters that stand in a tuple and are taken apart at once, so that clippy counts fewer: a struct has names.
`word`: another word for quiesce in a name.
`type`: a second type named `Place`, `Entry` or `Part`.

`idiom_hits`, in target/figures, is their sum. It may fall, and not rise above `MOST`. Paths in comments: tools/words.py.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: As many as there are.
MOST = 0
FOLDERS = ("src", "rust", "weft-bench", "libfabric-sys", "fuzz", "loom", "ffi-tests", "tools", "python", "integrations",
           "examples-c", "examples-python", "include", "build.rs")
#: Other words for quiesce, in a name.
RESTS = re.compile(r"\b(?:\w+_)?(?:resting|rested|at_rest|to_rest|tend_rest|lanes_quiet|are_quiet)\b|\bQuiet\b|\b\w*(?:Resting|Rested|AtRest)\w*\b")
#: Of the standard library; those of this repository are read from its sources.
OPTIONS = {"get", "get_mut", "first", "last", "first_mut", "last_mut", "find", "find_map", "position", "pop", "pop_front",
           "pop_back", "next", "upgrade", "ok", "take", "replace", "checked_add", "checked_sub", "as_ref", "as_mut", "as_deref",
           "as_deref_mut", "then", "then_some", "max_by_key", "min_by_key", "and_then"}
#: They leave the Option that they are called on an Option.
KEEP = {"filter", "copied", "cloned", "map", "flatten", "as_ref", "as_mut", "as_deref", "as_deref_mut", "take", "or", "or_else",
        "and_then", "filter_map"}

#: Of many, though no plural.
MANY = {"", "0", "all", "allowed", "chosen", "done", "drain", "ended", "failed", "gone", "invalid", "into_iter", "iter", "iter_mut", "list",
        "lock", "named", "nearest", "new", "of", "of_calls", "of_peer", "old", "ours", "parked", "published", "refused", "registering", "taken", "those",
        "unauthenticated", "waiting"}


def blank(found):
    return re.sub(r"[^\n]", " ", found[0])


def code(path):
    """Without comments and literals; lines stay where they are."""
    text = path.read_text()
    if path.suffix in (".py", ".sh"):
        literals = r'""".*?"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|(?<![\w$])#[^\n]*'
    else:
        literals = r'//[^\n]*|/\*.*?\*/|\bb?r(#*)".*?"\1|"(?:[^"\\]|\\.)*"|\'(?:[^\'\\\n]|\\.[^\'\n]*)\''
    return re.sub(literals, blank, text, flags=re.S)


def files():
    for folder in FOLDERS:
        top = ROOT / folder
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.suffix in (".rs", ".py", ".sh", ".c", ".h", ".cpp", ".hpp") and not {"target", "vendor"} & set(path.parts):
                yield path.relative_to(ROOT)


def balanced(text, at):
    """Where the bracket at `at` is closed."""
    depth = 0
    for found in re.compile(r"[()\[\]{}]").finditer(text, at):
        depth += 1 if found[0] in "([{" else -1
        if depth == 0:
            return found.start()
    return len(text) - 1


def split(text):
    """By the commas that no bracket holds."""
    text, depth, item = text.replace("->", "  "), 0, ""
    for c in text:
        depth += (c in "([{<") - (c in ")]}>")
        if c == "," and depth == 0:
            yield item.strip()
            item = ""
        else:
            item += c
    if item.strip():
        yield item.strip()


def functions(text):
    """Start, name, parameters and end of each function of Rust."""
    for found in re.finditer(r"\bfn (\w+)(?=[<(])", text):
        opened = found.end()
        if text[opened] == "<":  # generics, whose bounds may have brackets: Fn(A) -> B
            depth = 0
            for at in range(opened, len(text)):
                depth += (text[at] == "<") - (text[at] == ">" and text[at - 1] != "-")
                if depth == 0:
                    break
            opened = text.find("(", at)
        closed = balanced(text, opened)
        body = re.compile(r"[;{]").search(text, closed)
        end = closed if body is None or body[0] == ";" else balanced(text, body.start())
        yield found.start(), found[1], list(split(text[opened + 1:closed])), end


def line_of(text, at):
    return text.count("\n", 0, at) + 1


OF = {".sh": r"(?<![\w.$-])of=|\bfor of in|\bread (?:-r )?of\b|\blocal of\b"}


def names(path, text, spans):
    """Each function that has the name as something of its own, each that is called so, and fields."""
    seen = set()
    for found in re.finditer(OF.get(path.suffix, r"(?<![\w$'-])(?<!(?<!\.)\.)(?<!::)of\b"), text):
        around = [start for start, *_, end in spans if start <= found.start() <= end]
        own = text[:found.start()].endswith("fn ")
        place = found.start() if own or not around else around[-1]
        if place not in seen:
            seen.add(place)
            yield f"{path}:{line_of(text, found.start())}: of: a name"


def options(texts):
    """Names of functions and fields that are Options: of each file, and of all where no file has others of the name."""
    own, others = {}, {}
    for path, text in texts.items():
        if path.suffix == ".rs":
            declared = re.findall(r"\bfn (\w+)(?:<[^{;]*?>)?\([^{;]*?\) -> ([^{;]+)", text)
            for name, type_ in declared + re.findall(r"\b(\w+): ([^,;{}()=]+)", text):
                is_option = re.match(r"(?:impl )?(?:&(?:'\w+ )?(?:mut )?)?Option<", type_.strip())
                (own if is_option else others).setdefault(path, set()).add(name)
    everywhere = set().union(*own.values()) - set().union(*others.values())
    return {path: everywhere | own.get(path, set()) - others.get(path, set()) for path in texts}


def receiver(text, at):
    """The chain of calls that ends before `at`: its names, the last first; none of an array."""
    found = []
    while True:
        while text[at - 1] in ")]":
            depth = 0
            while True:
                at -= 1
                depth += (text[at] in ")]}") - (text[at] in "([{")
                if depth == 0:
                    break
        start = at
        while start and (text[start - 1].isalnum() or text[start - 1] == "_"):
            start -= 1
        found.append(text[start:at])
        before = text[:start].rstrip()
        if not before.endswith(".") or before.endswith(".."):
            return found
        at = len(before.rstrip("?.").rstrip())


def is_option(text, at, known):
    """By what it is called: declared as one, made by what makes one, or the name of one thing."""
    chain = receiver(text, at)
    for name in chain:
        if name in known or name in OPTIONS - KEEP:
            return True
        if name not in KEEP:
            break
    return not name.endswith("s") and name not in MANY


def for_each(path, text, known):
    for found in re.finditer(r"\s*\.(?:iter|iter_mut|into_iter)\(\)\s*\.for_each\(", text):
        if is_option(text, found.start(), known):
            yield f"{path}:{line_of(text, found.end())}: for_each: of an Option"


def tuples(path, text, spans):
    for start, name, parameters, _ in spans:
        for _ in filter(re.compile(r"\(.*\): &?\(").match, parameters):
            yield f"{path}:{line_of(text, start)}: tuple: of {name}"


def words(path, text):
    for word in sorted(set(RESTS.findall(text))) if path.parts[0] == "src" else ():
        yield f"{path}:{line_of(text, text.find(word))}: word: {word}"


def types(texts):
    seen = {}
    for path, text in texts.items():
        for found in re.finditer(r"\b(?:struct|enum|type|trait|union) (Place|Entry|Part)\b", text):
            if path.parts[0] == "src" and seen.setdefault(found[1], path) != path:
                yield f"{path}:{line_of(text, found.start())}: type: {found[1]}, as in {seen[found[1]]}"


def hits():
    texts = {path: code(ROOT / path) for path in files()}
    known = options(texts)
    for path, text in texts.items():
        spans = list(functions(text)) if path.suffix == ".rs" else []
        yield from names(path, text, spans)
        if path.suffix == ".rs":
            yield from for_each(path, text, known[path])
            yield from tuples(path, text, spans)
            yield from words(path, text)
    yield from types(texts)


def main():
    found, asked = sorted(hits()), tuple(sys.argv[1:])
    if asked:
        print(*[hit for hit in found if hit.startswith(asked)], sep="\n")
        return
    figures = ROOT / "target/figures"
    figures.mkdir(parents=True, exist_ok=True)
    (figures / "idiom_hits").write_text(f"{len(found)}\n")
    kinds = [hit.split(": ")[1] for hit in found]
    print(f"idiom_hits: {len(found)}", *(f"({kind} {kinds.count(kind)})" for kind in sorted(set(kinds))))
    if len(found) > MOST:
        print(*found, sep="\n")
        sys.exit(f"There are more than {MOST}.")


if __name__ == "__main__":
    main()
