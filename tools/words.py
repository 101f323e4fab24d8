#!/usr/bin/env python3
"""Counts words of a private dialect: docs/glossary.md has the field's.     tools/words.py [--list]

`dialect_hits`: in the header, the documents, and the texts of errors and log lines (literals of src/); it must be 0.
`dialect_hits_src`: in the comments and names of src/, and in what uses Weft: examples, Python, NIXL.
`paths_absent`: files and folders that comments of the code name and that are not there; it must be 0.
`docs_words`: words of docs/*.md but the two references, which are made, without comments and recorded tables. A recorded table has
what a run measured or tried: the rows between a comment `figures: begin`, `recorded: begin` or `tested: begin` and its `end`.
All go into target/figures, beside the size of the header; --list shows where.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What is written instead is in the comment.
WORDS = [
    r"(?:^|[.;:(]|\b(?:and|or|by|to|of|for|if|than|but|as|that|where)) *\bwho(?:ever)?\b",  # the actor: a peer, a caller
    r"any more\b",  # no longer
    r"\bso many\b",  # this many, at most 64
    r"\bfor so long\b",  # this long, for 100 ms
    r"\b(?:un)?told\b",  # notified, acknowledged, passed
    r"\bheard\b|\bhears?\b",  # received
    r"\ba word (?:from|to)\b|\bfor a word\b|\bwithout a word\b",  # a message, silently
    r"\bgreet(?:s|ed|ings?)?\b",  # handshake
    r"\bstrangers?\b",  # an unauthenticated endpoint
    r"\bturn(?:s|ed)? away\b",  # reject
    r"\brubbish\b",  # malformed frames
    r"\bstandstill\b",  # stall
]
DIALECT = re.compile("|".join(f"(?:{word})" for word in WORDS), re.I)
#: Files of others, or made by a build, that comments may name.
NOT_HERE = {"fi_errno.h", "src/abi_1_0.c", "entries.h"}
CODE = ("src", "libfabric-sys", "rust", "weft-bench", "fuzz", "loom", "ffi-tests", "examples-c", "include", "integrations")
#: Made of the header, or of what was said at the time.
GENERATED = {"docs/reference.md", "docs/python.md", "CHANGELOG.md", "docs/glossary.md"}


def documents():
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("python/*.md"), *ROOT.glob("integrations/**/*.md")]
    for path in files:
        if str(path.relative_to(ROOT)) not in GENERATED:
            yield path, re.sub(r"`[^`\n]*`|^```.*?^```$", lambda code: "\n" * code[0].count("\n"), path.read_text(), flags=re.M | re.S)
    header = ROOT / "include/weft.h"
    yield header, header.read_text()


def sources():
    """Each file of src/ without its tests: its literals, and the rest."""
    for path in sorted(ROOT.glob("src/**/*.rs")):
        if re.search(r"tests?\.rs$", path.name):
            continue
        text = re.split(r"^#\[cfg\((?:all\()?test[^\n]*\]\s*(?:pub )?mod \w+ \{", path.read_text(), flags=re.M)[0]
        literals = re.compile(r'"(?:[^"\\]|\\.)*"')
        comments = re.compile(r"//[^\n]*")
        blank = lambda found: re.sub(r"[^\n]", " ", found[0])  # noqa: E731
        code = comments.sub(blank, text)
        yield path, "\n".join(" ".join(found[0] for found in literals.finditer(line)) for line in code.split("\n")), (
            re.sub(r"_", " ", literals.sub(blank, text)))


def users():
    """Each file of what uses the library."""
    for pattern in ("examples-c/**/*.*", "examples-python/**/*.py", "integrations/**/*.[ch]pp", "integrations/**/*.py", "python/**/*.py",
                    "include/*.hpp"):
        for path in sorted(ROOT.glob(pattern)):
            yield path, path.read_text().replace("_", " ")


def hits(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        for found in DIALECT.finditer(line):
            yield f"{path.relative_to(ROOT)}:{number}: {found[0].strip(' .;:(,')}: {' '.join(line.split())[:140]}"


def paths():
    """What comments name as a file, by its end, or as a folder at the root or in src/, and is neither."""
    files = [path.relative_to(ROOT) for path in ROOT.glob("*") if path.is_file()]
    files += [path.relative_to(ROOT) for top in ROOT.iterdir() if top.is_dir() and top.name not in (".git", "target", "vendor")
              for path in top.glob("**/*")]
    known = {"/".join(path.parts[at:]) for path in files for at in range(len(path.parts))}
    known |= {parent for path in known for parent in ["/".join(path.split("/")[:end]) for end in range(1, path.count("/") + 1)]}
    tops = {path.parts[0] for path in files if len(path.parts) > 1} | {path.name for path in (ROOT / "src").iterdir()}
    for path in files:
        if path.parts[0] not in CODE or path.suffix not in (".rs", ".c", ".h", ".cpp", ".hpp") or "target" in path.parts:
            continue
        for number, line in enumerate((ROOT / path).read_text().split("\n"), 1):
            comment = re.search(r"(?<!:)(?://|/\*|^ ?\* )(.*)", line)
            for name in re.findall(r"(?<![\w/.<\"$:*-])[\w.*-]+(?:/[\w.*-]+)*", comment[1] if comment else ""):
                name = re.sub(r"^(?:\.\./)+|/?[^/]*\*.*", "", name.rstrip("."))
                is_path = re.search(r"\.(?:rs|c|h|hpp|cpp|py|sh|md|txt|toml)$", name) or "/" in name and name.split("/")[0] in tops
                if is_path and name not in known | NOT_HERE:
                    yield f"{path}:{number}: {name}: there is none"


def docs_words():
    recorded = re.compile(r"<!-- (figures|recorded|tested): begin -->.*?<!-- \1: end -->", re.S)
    shown = lambda text: re.sub(r"<!--.*?-->", "", recorded.sub(lambda table: re.sub(r"^\|.*", "", table[0], flags=re.M), text), flags=re.S)  # noqa: E731
    return sum(len(shown(path.read_text()).split()) for path in ROOT.glob("docs/*.md") if path.name not in ("reference.md", "python.md"))


def header():
    """How large the header is: functions, fields of its structs, words."""
    text = (ROOT / "include/weft.h").read_text()
    structs = re.findall(r"typedef struct \w* ?\{(.*?)\}", re.sub(r"/\*.*?\*/", "", text, flags=re.S), re.S)
    yield "header_functions", len(re.findall(r"^WEFT_API", text, re.M))
    yield "header_fields", sum(body.count(";") for body in structs)
    yield "header_words", len(text.split())


def main():
    said = [hit for path, text in documents() for hit in hits(path, text)]
    written = []
    for path, literals, rest in sources():
        said += hits(path, literals)
        written += hits(path, rest)
    for path, text in users():
        written += hits(path, text)
    absent = list(paths())
    figures = ROOT / "target/figures"
    figures.mkdir(parents=True, exist_ok=True)
    for name, value in (("dialect_hits", len(said)), ("dialect_hits_src", len(written)),
                        ("paths_absent", len(absent)), ("docs_words", docs_words()), *header()):
        (figures / name).write_text(f"{value}\n")
        print(f"{name}: {value}")
    print(*absent, sep="\n", end="\n" if absent else "")
    if "--list" in sys.argv[1:]:
        print(*said, *written, sep="\n")
    sys.exit(len(said) + len(absent) > 0)


if __name__ == "__main__":
    main()
