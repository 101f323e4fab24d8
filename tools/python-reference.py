#!/usr/bin/env python3
"""Makes docs/python.md from the docstrings of python/src/libweft:  tools/python-reference.py write | check

It reads the sources and imports nothing. What is public and says nothing of itself is an error. A class whose base is not public has
what that base has.
"""

import ast
import os
import re
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCE = os.path.join(ROOT, "python/src/libweft")
OUT = os.path.join(ROOT, "docs/python.md")

TOP = """# Python reference

Made from the docstrings of `libweft` by `make header`: do not edit. How to install it, a first program, threads, signals and logging
are in [its README](../python/README.md); what is promised is in [concepts](concepts.md#what-a-completion-means), what each status
means in [troubleshooting](troubleshooting.md).

Times are seconds, lengths and offsets bytes. Every call may raise a [WeftError](#wefterror), and TypeError or ValueError for an argument
of a wrong kind or outside its range.
"""

#: What is in `__all__`, by what a reader looks for; the rest follows in the last section.
SECTIONS = {
    "Endpoints and peers": ["Endpoint", "Peer", "Progress", "Idle", "topology", "library_version"],
    "Memory": ["Buffer", "Memory", "RemoteMemory", "Access"],
    "Operations": ["Operation", "Completion", "Side", "Entry", "Prepared", "Parts", "Counter", "Watch"],
    "Events": ["Event", "Message", "Notification", "PeerUp", "PeerDown", "RailUp", "RailDown", "Other"],
    "Errors": ["WeftError", "RetryError", "BusyError", "PeerError", "ConnectionFailedError", "TimedOutError", "RevokedError", "FileError",
               "CanceledError", "UsageError", "ClosedError", "MachineError", "InternalError", "StillRunningError"],
    "The log": ["log_to", "set_log"],
    "What lies beneath": ["c", "lib"],
}
#: Other modules that programs import, and what of them.
MODULES = {
    "weights": ["Source", "Target", "Shard", "FileRange", "manifest_of", "shards_of", "create"],
    "checkpoint": ["Store", "Checkpoints", "Saving", "Step", "StoreError", "ChangedError"],
    "checkpoint.dcp": ["WeftWriter", "WeftReader"],
    "slab": ["Slab", "Slots"],
}
missing = []


class Module:
    """A file, and what its names stand for."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.text = file.read()
        self.path, self.lines, self.tree = path, self.text.split("\n"), ast.parse(self.text)
        self.own, self.imported = {}, {}
        for node in self.tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                self.own[node.name] = node
            elif isinstance(node, ast.ImportFrom) and node.level:
                folder = os.path.dirname(path)
                for _ in range(node.level - 1):
                    folder = os.path.dirname(folder)
                for name in node.names:
                    self.imported[name.asname or name.name] = (folder, node.module or "", name.name)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        self.own[target.id] = node

    def find(self, name):
        """The module that has the name, and its node; a module has no node."""
        if name in self.own:
            return self, self.own[name]
        if name not in self.imported:
            return None, None
        folder, module, name = self.imported[name]
        path = os.path.join(folder, *module.split("."))
        if not module:
            return loaded(os.path.join(folder, f"{name}.py")), None
        return loaded(f"{path}.py" if os.path.exists(f"{path}.py") else os.path.join(path, "__init__.py")).find(name)

    def comment_above(self, line):
        """The `#:` comment that ends before a line."""
        said = []
        while line >= 2 and (found := re.match(r"\s*#: ?(.*)", self.lines[line - 2])):
            said.insert(0, found[1])
            line -= 1
        return "\n".join(said)


cache = {}


def loaded(path):
    return cache.setdefault(path, None) or cache.update({path: Module(path)}) or cache[path]


def markdown(said, links):
    """A docstring as Markdown: lines that begin with names of parameters are a list, and names lead to their headings."""
    out, in_list = [], False
    for line in said.split("\n"):
        found = re.match(r"((?:[a-z_]+)(?:, [a-z_]+)*)(?: \(.*?\))?: (.*)", line)
        if line.startswith("    "):
            out += [""] * bool(out and out[-1] and not out[-1].startswith("    ")) + [line]
            continue
        if found and not re.match(r"(or|and|so|but)\b", found[1]):
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            out += [""] * (not in_list and bool(out) and bool(out[-1])) + [f"- {names}: {line[len(found[1]) + 2:]}"]
            in_list = True
        elif in_list and line:
            out[-1] += " " + line
        else:
            out.append(line)
            in_list = in_list and bool(line)
    text = "\n".join(out).strip()
    pieces = re.split(r"(^    .*$|`[^`\n]*`)", text, flags=re.M)
    for at, piece in enumerate(pieces):
        name = re.fullmatch(r"`(?:libweft\.)?([\w.]+)`", piece)
        if name and name[1] in links:
            pieces[at] = f"[{piece}](#{links[name[1]]})"
    return "".join(pieces)


def signature(module, node, name):
    """As the source has it, without `self`."""
    first = node.body[0].lineno - 1
    text = " ".join(line.strip() for line in module.lines[node.lineno - 1:first])
    text = text[text.index("(") + 1:text.rindex(":")]
    text = re.sub(r"^(self|cls)(, |(?=\)))", "", text)
    text = re.sub(r'(: |-> )"([^"]*)"', r"\1\2", text)
    text = f"{'async ' if isinstance(node, ast.AsyncFunctionDef) else ''}{name}({text}"
    # A line is broken between two parameters, and so not within brackets of their types.
    text = re.sub(r"\[[^\[\]]*(\[[^\[\]]*(\[[^\[\]]*\][^\[\]]*)*\][^\[\]]*)*\]|: \w|(?<=.) [=|] | -> ", lambda part: part[0].replace(" ", "\0"), text)
    return "\n".join(textwrap.wrap(text, 110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)).replace("\0", " ")


def said_of(node, name):
    text = ast.get_docstring(node)
    if not text:
        missing.append(name)
    return text or ""


def bases(module, node, public):
    """Classes that a class has its methods of, itself first, which are not public by themselves."""
    yield module, node
    for base in node.bases:
        name = base.value.id if isinstance(base, ast.Subscript) else getattr(base, "id", "")
        there, found = module.find(name)
        if isinstance(found, ast.ClassDef) and name not in public:
            yield from bases(there, found, public)


def members(module, node, name, public):
    """Fields, and what is called, as pairs of a heading's text and Markdown's source."""
    fields, calls = [], []
    for there, kind in bases(module, node, public):
        for item in kind.body:
            if isinstance(item, ast.AnnAssign) and not item.target.id.startswith("_"):
                value = f" = {ast.get_source_segment(there.text, item.value)}" if item.value else ""
                fields.append((f"{item.target.id}: {ast.get_source_segment(there.text, item.annotation).strip(chr(34))}{value}",
                               there.comment_above(item.lineno)))
            elif isinstance(item, ast.Assign) and not item.targets[0].id.startswith("_"):
                fields.append((ast.get_source_segment(there.text, item), there.comment_above(item.lineno)))
            elif isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if item.name == "__init__":
                    for part in ast.walk(item):
                        target = part.targets[0] if isinstance(part, ast.Assign) else getattr(part, "target", None)
                        if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
                            comment = there.comment_above(part.lineno)
                            if comment:
                                fields.append((target.attr, comment))
                    continue
                if item.name.startswith("_") or any(call == item.name for call, *_ in calls):
                    continue
                marks = {ast.unparse(mark) for mark in item.decorator_list}
                if any(mark.endswith(".setter") for mark in marks):
                    continue
                text = said_of(item, f"{name}.{item.name}")
                if "property" in marks:
                    returned = ast.get_source_segment(there.text, item.returns).strip('"')
                    fields.append((f"{item.name}: {returned}", text))
                else:
                    calls.append((item.name, signature(there, item, item.name), text))
    return fields, calls


def entry(module, name, public, links, prefix=""):
    there, node = module.find(name)
    if there is None:
        sys.exit(f"{name}: not found in {module.path}")
    yield f"\n### {name}\n"
    if node is None or isinstance(node, (ast.Assign, ast.AnnAssign)):
        text = there.comment_above(node.lineno) if node else ast.get_docstring(there.tree)
        if not text:
            missing.append(name)
        if node is not None and isinstance(node, ast.Assign):
            yield f"\n```python\n{ast.get_source_segment(there.text, node)}\n```\n"
        yield f"\n{markdown(text or '', links)}\n"
        return
    if isinstance(node, ast.FunctionDef):
        yield f"\n```python\n{signature(there, node, name)}\n```\n\n{markdown(said_of(node, prefix + name), links)}\n"
        return
    made_by = [kind for _, kind in bases(there, node, public)] if prefix else [node]
    begin = next((item for kind in made_by for item in kind.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    kinds = [base for base in (ast.get_source_segment(there.text, base) for base in node.bases) if base != "Transfers" and base[0] != "_"]
    made = [f"class {name}({', '.join(kinds)})" if kinds else f"class {name}"]
    if begin is not None and (name in {"Endpoint", "Parts"} or prefix):
        made.append(signature(there, begin, name).rpartition(" -> ")[0])
    yield "\n```python\n" + "\n".join(made) + "\n```\n"
    text = said_of(node, prefix + name)
    if begin is not None and ast.get_docstring(begin):
        text += "\n\n" + ast.get_docstring(begin)
    yield f"\n{markdown(text, links)}\n"
    for base, kind in list(bases(there, node, public))[1:]:
        if kind.name == "Transfers":
            yield f"\n{markdown(ast.get_docstring(kind).partition(chr(10) * 2)[2], links)}\n"
    # What another package calls is described there.
    fields, calls = ([], []) if prefix == "checkpoint.dcp." else members(there, node, prefix + name, public)
    if fields:
        yield "\n" + "".join(f"- `{field}`" + (f": {' '.join(markdown(said, links).split())}" if said else "") + "\n" for field, said in fields)
    for call, line, said in calls:
        yield f"\n#### {name}.{call}\n\n```python\n{line}\n```\n\n{markdown(said, links)}\n"


def made():
    package = loaded(os.path.join(SOURCE, "__init__.py"))
    names = set(ast.literal_eval(package.own["__all__"].value))
    sections = dict(SECTIONS)
    placed = {name for section in sections.values() for name in section}
    if names != placed:
        sys.exit(f"tools/python-reference.py: in __all__ or here alone: {', '.join(sorted(names ^ placed))}")
    links = {name: name.lower() for names in [*sections.values(), *MODULES.values()] for name in names}
    out = [TOP, "\n"]
    out += [f"- {title}: " + ", ".join(f"[{name}](#{name.lower()})" for name in section) + "\n" for title, section in sections.items()]
    out += [f"- [libweft.{module}](#libweft{module.replace('.', '')}): " + ", ".join(f"[{name}](#{name.lower()})" for name in section) + "\n"
            for module, section in MODULES.items()]
    for title, section in sections.items():
        out.append(f"\n## {title}\n")
        for name in section:
            out += entry(package, name, names, links)
    for name, section in MODULES.items():
        path = os.path.join(SOURCE, *name.split("."))
        module = loaded(f"{path}.py" if os.path.exists(f"{path}.py") else os.path.join(path, "__init__.py"))
        out.append(f"\n## libweft.{name}\n\n{markdown(said_of(module.tree, name), {})}\n")
        for item in section:
            out += entry(module, item, names | set(section), links, f"{name}.")
    if missing:
        sys.exit(f"without a docstring: {', '.join(missing)}")
    text = re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](\1.md)", "".join(out))
    return re.sub(r"\n{3,}", "\n\n", text)


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        page = made()
        with open(OUT, "w", encoding="utf-8") as out_file:
            out_file.write(page)
    elif sys.argv[1:] == ["check"]:
        with open(OUT, encoding="utf-8") as out_file:
            if out_file.read() != made():
                sys.exit("docs/python.md is not what the docstrings make: run make header")
        print("docs/python.md is what the docstrings of libweft make.")
    else:
        sys.exit("tools/python-reference.py write | check")
