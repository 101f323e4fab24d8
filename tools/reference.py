#!/usr/bin/env python3
"""Makes docs/reference.md from include/weft.h, to be read with links:  tools/reference.py write | check

Constants become tables; functions, structs and other types have a heading each, named as they are. Left out is what another
page has: the program and the promises at the header's top, what each status means, and what each field of the configuration does.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADER = os.path.join(ROOT, "include/weft.h")
OUT = os.path.join(ROOT, "docs/reference.md")

TOP = """# Reference

Made from [`weft.h`](../include/weft.h) by `make header`: do not edit. A first program is in
[getting started](getting-started.md), what is promised in [concepts](concepts.md#what-a-completion-means), what each status
means in [troubleshooting](troubleshooting.md).
"""

# A heading; or a comment, if there is one, and what it is of: a macro, something with a body, anything else.
ITEM = re.compile(
    r"/\* ---- (?P<section>.*?) ---- \*/"
    r"|(?:/\*\*(?P<comment>(?:(?!\*/).)*)\*/\n)?"
    r"(?:#define (?P<macro>WEFT_\w+) (?P<value>[^\n]*)"
    r"|(?P<code>(?:typedef|WEFT_API)(?:[^;{]*\{.*?^\}[^;]*|[^;{]*);))",
    re.M | re.S,
)


def prose(comment):
    """A comment without its stars or indent, as Markdown, which it nearly is."""
    lines = [re.sub(r"^( \* ?| {1,4})", "", line) for line in (comment or "").strip("\n").split("\n")]
    return "\n".join(lines).strip()


def name_of(code):
    """Of a callback, a function, or whatever else a typedef names at its end."""
    found = re.search(r"\(\*(\w+)\)|^[^{]*?(\w+)\(|(\w+);$", code)
    return next(filter(None, found.groups()))


def items(text):
    for found in ITEM.finditer(text):
        if found["section"]:
            yield "section", found["section"], ""
        elif found["macro"]:
            if not found["macro"].endswith("_INIT"):  # of a struct, which names it
                yield "constant", (found["macro"], found["value"]), prose(found["comment"])
        else:
            code = re.sub(r"\b(WEFT_API|WEFT_MUST_USE)\s+", "", found["code"])
            yield "function" if found["code"].startswith("WEFT_API") else "type", code, prose(found["comment"])


def linked(constant):
    """A status leads to what to do about it."""
    page = f"(troubleshooting.md#{constant.lower()})"
    return f"[`{constant}`]{page}" if constant.startswith("WEFT_ERR_") else f"`{constant}`"


def index(all_items):
    """What there is to call, by the first words of each section."""
    out = []
    for kind, what, _ in all_items:
        if kind == "section":
            out.append((what, []))
        elif kind == "function":
            out[-1][1].append(name_of(what))
    return "".join(f"- {re.split('[:,]', section)[0]}: " + ", ".join(f"`{name}`" for name in names) + "\n" for section, names in out if names)


def pieces(all_items):
    """Each item as Markdown; constants that follow each other are one table."""
    in_table = False
    for kind, what, comment in all_items:
        if kind == "constant":
            head = "" if in_table else "\n| constant | value | |\n| --- | ---: | --- |\n"
            said = "" if what[0].startswith("WEFT_ERR_") else " ".join(comment.split())
            yield f"{head}| {linked(what[0])} | {what[1]} | {said} |\n"
        elif kind == "section":
            yield f"\n## {what}\n"
        else:
            if name_of(what) == "weft_endpoint_config":
                what = re.sub(r" */\*\*.*?\*/\n", "", what, flags=re.S)
            yield f"\n### {name_of(what)}\n\n```c\n{what}\n```\n" + (f"\n{comment}\n" if comment else "")
        in_table = kind == "constant"


def with_links(text, names):
    """Names in prose lead to their headings, and pages to themselves."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"`(weft_\w+)`", lambda n: f"[{n[0]}](#{n[1]})" if n[1] in names else n[0], parts[at])
        parts[at] = re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](\1.md)", parts[at])
    return "".join(parts)


def made():
    with open(HEADER, encoding="utf-8") as file:
        text = file.read().replace(" \\\n", "")
    first = prose(text.partition("/*\n")[2].partition("*/")[0])
    first = first.partition("\n\n")[0] + "\n\n" + first[first.index("Rules for every function:"):]
    body = text.partition('extern "C" {')[2]
    all_items = list(items(body))
    if sum(kind == "function" for kind, _, _ in all_items) != body.count("WEFT_API"):
        sys.exit(f"{HEADER}: not all of its functions were understood")
    names = {name_of(what) for kind, what, _ in all_items if kind in ("function", "type")}
    page = f"{TOP}\n{first}\n\n## Functions\n\n{index(all_items)}" + "".join(pieces(all_items))
    return with_links(page, names)


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        with open(OUT, "w", encoding="utf-8") as out_file:
            out_file.write(made())
    elif sys.argv[1:] == ["check"]:
        with open(OUT, encoding="utf-8") as out_file:
            if out_file.read() != made():
                sys.exit("docs/reference.md is not what include/weft.h makes: run make header")
        print("docs/reference.md is what include/weft.h makes.")
    else:
        sys.exit("tools/reference.py write | check")
