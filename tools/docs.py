#!/usr/bin/env python3
"""Builds the documentation site into target/docs/site:     tools/docs.py

The pages are the Markdown of the repository, at its paths, so a link that works there works here. Sources that pages link to
become pages, folders lists of them; rustdoc lies in rust/libweft. The builder is mkdocs-material, in target/docs/env (registry).
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "target/docs"
SOURCE = DOCS / "source"
PAGES = ("*.md", "docs/*.md", "python/*.md", "rust/**/*.md", "examples-*/**/*.md", "tools/efa/*.md")
ASSETS = {".svg", ".png", ".json"}
LANGUAGES = {".h": "c", ".hpp": "cpp", ".rs": "rust", ".py": "python"}
BUILDER = ["mkdocs==1.6.1", "mkdocs-material==9.8.2", "pymdown-extensions==13.1.2"]
#: Wide tables scroll by themselves; code in cells breaks anywhere.
STYLE = """.md-typeset table:not([class]) { font-size: .68rem }
.md-typeset td code, .md-typeset h3 { overflow-wrap: anywhere }
.md-typeset table:not([class]) td { min-width: 5rem }
.md-typeset img { max-width: 100%; height: auto }
"""


def environment():
    """The folder of programs in which mkdocs is; None, with what to do, if it is not to be had."""
    made, programs = DOCS / "made", DOCS / "env/bin"
    if made.exists() and made.read_text() == str(BUILDER):
        return programs
    if os.environ.get("WEFT_NO_INSTALL"):
        return None
    subprocess.run([sys.executable, "-m", "venv", "--clear", DOCS / "env"], check=True)
    if subprocess.run([programs / "pip", "install", "-q", "--disable-pip-version-check", *BUILDER], check=False).returncode:
        return None
    made.write_text(str(BUILDER))
    return programs


def write(path, text):
    path = SOURCE / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def staged(linked):
    """The page that stands for a linked file or folder; the file itself if it is a picture or data."""
    path = ROOT / linked
    if path.suffix in ASSETS:
        (SOURCE / linked).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, SOURCE / linked)
        return linked
    page = f"{linked}/README.md" if path.is_dir() else f"{linked}.md"
    if (SOURCE / page).exists():
        return page
    if path.is_dir():
        files = sorted(file.name for file in path.iterdir() if file.suffix in {".c", ".cpp", ".py", ".rs"})
        rows = [f"- [{name}]({os.path.relpath(staged(f'{linked}/{name}'), linked)})" for name in files]
        write(page, f"# {linked}\n\n" + "\n".join(rows) + "\n")
    else:
        language = LANGUAGES.get(path.suffix, path.suffix[1:] or "text")
        write(page, f"---\nsearch: {{exclude: true}}\n---\n# {linked}\n\n````{language}\n{path.read_text()}````\n")
    return page


def page_of(path):
    """A page of the repository with the links of a page of the site."""
    folder = os.path.dirname(path)

    def link(found):
        to, anchor = re.match(r"([^#]*)(.*)", found[1]).groups()
        if not to or re.match(r"[a-z]+:", to) or to.endswith(".md"):
            return found[0]
        return f"]({os.path.relpath(staged(os.path.normpath(os.path.join(folder, to))), folder or '.')}{anchor})"

    # Lines that rustdoc hides are hidden here, too.
    text = re.sub(r"^```no_run\n(.*?)^```$", lambda block: "```rust\n" + re.sub(r"^# .*\n", "", block[1], flags=re.M) + "```",
                  (ROOT / path).read_text(), flags=re.M | re.S)
    pieces = re.split(r"(^```.*?^```$|`[^`\n]*`)", text, flags=re.M | re.S)
    pieces[::2] = [re.sub(r"\]\(([^)\s]+)\)", link, piece) for piece in pieces[::2]]
    for shown in re.findall(r'(?:src|srcset)="([^":]+)"', text):
        staged(os.path.normpath(os.path.join(folder, shown)))
    return "".join(pieces)


def rustdoc():
    cargo = os.environ.get("CARGO", "cargo")
    flags = os.environ.get("CARGO_FLAGS", "").split()
    subprocess.run([cargo, "doc", *flags, "-q", "-p", "libweft", "--no-deps", "--features", "futures"], cwd=ROOT, check=True)
    made = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "doc"
    shutil.copytree(made, SOURCE / "rust", ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)


def config():
    lines = (ROOT / "tools/mkdocs.yml").read_text().splitlines(keepends=True)
    for line in lines:
        named = re.match(r" {6}- (?:.*: )?(\S+\.(?:md|html))$", line)
        if not named or (SOURCE / named[1]).exists():
            yield line


def main():
    programs = environment()
    if not programs:
        sys.exit("target/docs/env has no mkdocs: make docs without WEFT_NO_INSTALL installs it, where pip reaches a registry")
    shutil.rmtree(SOURCE, ignore_errors=True)
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            write(path.relative_to(ROOT), page_of(str(path.relative_to(ROOT))))
    write("site.css", STYLE)
    rustdoc()
    (DOCS / "mkdocs.yml").write_text("".join(config()))
    quiet = dict(os.environ, NO_MKDOCS_2_WARNING="1")
    if subprocess.run([programs / "mkdocs", "build", "-q", "-f", DOCS / "mkdocs.yml"], env=quiet, check=False).returncode:
        sys.exit(1)
    print(f"target/docs/site/index.html; with its search: python3 -m http.server -d {DOCS.relative_to(ROOT)}/site")


if __name__ == "__main__":
    main()
