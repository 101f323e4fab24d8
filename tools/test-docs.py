#!/usr/bin/env python3
"""What the documents say is there: links, names, commands, files; and nothing that a user meets is left out of them."""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SKIPPED = {"target", "vendor", "corpus"}
# What documents name and other branches bring: goes when it is there.
COMING: set[str] = set()
MADE_UP = {"weft_peer_ping"}


def files():
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if f not in SKIPPED and not f.startswith("."))
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), ROOT)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as file:
        return file.read()


FILES = set(files())
DOCUMENTS = {path: read(path) for path in sorted(FILES) if path.endswith(".md")}
HEADER = read("include/weft.h")


def without_code(text):
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def slugs(text):
    """The anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links():
    for path, text in DOCUMENTS.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
            if re.match(r"[a-z]+:", link):
                continue
            to, _, anchor = link.partition("#")
            to = os.path.normpath(os.path.join(os.path.dirname(path), to)) if to else path
            if to in COMING and to not in FILES:
                continue
            if not os.path.exists(os.path.join(ROOT, to)):
                yield f"{path}: {link}: no such file"
            elif anchor and to in DOCUMENTS and anchor not in slugs(DOCUMENTS[to]):
                yield f"{path}: {link}: no such heading"


def statuses():
    ours = set(re.findall(r"^#define (WEFT_ERR_\w+) ", HEADER, re.M))
    page = DOCUMENTS["docs/troubleshooting.md"]
    chapters = dict(re.findall(r"^### (WEFT_ERR_\w+)\n(.*?)(?=^#|\Z)", page, re.M | re.S))
    for status in sorted(ours ^ set(chapters)):
        yield f"{status}: " + ("not in docs/troubleshooting.md" if status in ours else "not in weft.h")
    for status, text in chapters.items():
        if "**What happened.**" not in text or not re.search(r"\*\*(Look at|Do)\.\*\*", text):
            yield f"{status}: says not what happened, or not what to look at or do"


def rust(*folders):
    """Of the library, without its tests."""
    for path in sorted(FILES):
        if path.endswith(".rs") and path.startswith(folders) and "tests" not in path:
            yield path, read(path)


def variables():
    """Those of the environment that the library reads."""
    defined = set(re.findall(r"^#define (WEFT_\w+)", HEADER, re.M)) | {"WEFT_ERR_UNKNOWN"}
    for _, text in rust("src/", "libfabric-sys/src/"):
        text = re.split(r"^#\[cfg\(test\)\]\nmod tests \{|^#\[test\]", text, flags=re.M)[0]
        yield from set(re.findall(r'"(WEFT_[A-Z0-9_]+)"', text)) - defined
        yield from re.findall(r'env::var(?:_os)?\("(\w+)"', text)


def fields_table():
    """Cells of the table of fields, by field."""
    page = DOCUMENTS["docs/configuration.md"]
    table = page.partition("## Fields")[2].partition("\n## ")[0]
    for cells in re.findall(r"^\| (\[?`[^|]*) \|[^|]*\|([^|]*)\|([^|]*)\|", table, re.M):
        for field in re.findall(r"`(\w+)`", cells[0]):
            yield field, (cells[1].strip(), cells[2].strip())


UNITS = {"ns": 1, "s": 10**9, "h": 3600 * 10**9, "MiB": 1 << 20, "GiB": 1 << 30}


def number(text):
    found = re.match(r"([\d,]*\d) ?(\w*)", text)
    return int(found[1].replace(",", "")) * UNITS.get(found[2], 1) if found else None


def ranges():
    """Least, most and default of fields, as src has them, beside those of the table."""
    rows = dict(fields_table())
    constants = {"SECOND_NS": 10**9, "DAY_NS": 24 * 3600 * 10**9}
    source = read("src/worker/environment.rs")
    bounds = re.findall(r"Field::(?:Count|Time)\(\|c\| &mut c\.(\w+), \(([^,]+), ([^,]+)\), ([^)]+)\)", source)
    for field, low, high, default in bounds:
        here, there = rows.get(field, ("", ""))
        low, high, default = (eval(text.strip(), constants) for text in (low, high, default))  # pylint: disable=eval-used
        said = [number(part) for part in there.split(" to ")]
        if said != [low, high] or default not in (0, number(here)):
            yield f"{field}: {low} to {high}, default {default}; docs/configuration.md has \"{there}\" and \"{here}\""
    if len(bounds) < 10:
        yield "src/worker/environment.rs was not understood"


def settings():
    page = DOCUMENTS["docs/configuration.md"]
    for variable in sorted(set(variables())):
        if not re.search(rf"^\|.* \| `{variable}`[ :]|^\| `{variable}` \|", page, re.M):
            yield f"{variable}: read by the library, not in docs/configuration.md"
    fields = HEADER.partition("typedef struct weft_endpoint_config {")[2].partition("} weft_endpoint_config;")[0]
    fields = re.findall(r"(\w+);$", re.sub(r"/\*.*?\*/", "", fields, flags=re.S), re.M)
    rows = dict(fields_table())
    for field in fields:
        if field not in rows:
            yield f"{field} of weft_endpoint_config: not in docs/configuration.md"
    if len(fields) < 19:
        yield "weft_endpoint_config was not understood"


def metric_names():
    code = read("src/calls/metrics.rs").partition("#[cfg(test)]")[0]
    return set(re.findall(r'"(weft_\w+)"', code))


def names():
    """weft_* of the headers; WEFT_* of anything that is no document."""
    code = HEADER + read("include/weft.hpp")
    others = "".join(read(path) for path in FILES if re.match(
        r"(include|src|libfabric-sys|cmake|tools|ffi-tests|weft-bench|python|integrations)/|Makefile|CMakeLists|build\.rs", path)
        and not path.endswith((".md", ".svg")) and path != "tools/test-docs.py")
    known = metric_names() | set(re.findall(r"\bweft_\w+", code)) | set(re.findall(r"\bWEFT_\w+", code + others)) | COMING | MADE_UP
    for path, text in DOCUMENTS.items():
        for name, star in sorted(set(re.findall(r"(?<![\w/.#-])(weft_\w+|WEFT_[A-Z]\w*)(\*?)", text))):
            if star:
                if not any(other.startswith(name) for other in known):
                    yield f"{path}: {name}*: there is none"
            elif name not in known:
                yield f"{path}: {name}: there is none"


def messages():
    """Functions that errors and lines of the log name. (weft_copy is a kernel of a GPU.)"""
    others = metric_names() | {"weft_copy"}
    for path, text in rust("src/"):
        text = re.sub(r"^ *//.*$", "", text.split("#[cfg(test)]\nmod tests {")[0], flags=re.M)
        for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', text, re.S):
            for name in re.findall(r"\bweft_[a-z_]+\b", literal):
                if not re.search(rf"\b{name}\b", HEADER) and name not in others:
                    yield f"{path}: \"{literal[:60]}...\": there is no {name}"


def code_of(text):
    """Lines of blocks, and what stands between backticks."""
    for block in re.findall(r"^```(?:sh)?\n(.*?)^```$", text, re.M | re.S):
        yield from block.splitlines()
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    yield from re.findall(r"^    +(\S.*)$", text, re.M)
    yield from re.findall(r"`([^`\n]+)`", text)


def commands():
    targets = set(re.findall(r"^([a-z0-9-]+):", read("Makefile"), re.M))
    bench = "".join(read(path) for path in FILES if path.startswith("weft-bench/src/commands/"))
    known = set(re.findall(r'^        Some\("(\w+)"\) => \(\w+::', bench, re.M))
    for path, text in DOCUMENTS.items():
        for line in code_of(text):
            line = line.split(" #")[0]
            for target in re.findall(r"(?:^|&& )(?:\w+=\S+ )*make ([a-z0-9-]+)", line):
                if target not in targets and f"make {target}" not in COMING:
                    yield f"{path}: make {target}: no such target"
            for found in re.finditer(r"(?:^|/|&& )weft-bench ([a-z]+)([^|&]*)", line):
                if found[1] not in known:
                    yield f"{path}: weft-bench {found[1]}: no such command"
                for option in re.findall(r"--([a-z-]+)", found[2]):
                    if f'"--{option}"' not in bench:
                        yield f"{path}: weft-bench {found[1]} --{option}: no such option"
            for program in re.findall(r"target/examples-c/(\w+)", line):
                if not {f"examples-c/{program}.c", f"examples-c/{program}.cpp", f"examples-c/{program}/{program}.cpp"} & FILES:
                    yield f"{path}: {program}: no such example"


def listed_targets():
    """What `make help` lists is in CONTRIBUTING.md."""
    named = set(re.findall(r"\bmake ([a-z0-9-]+)", DOCUMENTS["CONTRIBUTING.md"]))
    for target in set(re.findall(r"^([a-z0-9-]+):.*##", read("Makefile"), re.M)) - named:
        yield f"CONTRIBUTING.md: make {target} is not in it"


def paths():
    """Files and folders that are named in backticks or commands."""
    tails = {path[at:] for path in FILES for at in [0] + [i + 1 for i, c in enumerate(path) if c == "/"]}
    folders = {os.path.dirname(path)[:end] for path in FILES for end in range(len(path)) if path[end:end + 1] == "/"}
    for path, text in DOCUMENTS.items():
        for line in code_of(text):
            for word in re.findall(r"(?<![\w/.*-])[\w.-]+(?:/[\w.-]+)*(?![\w*/.-])", line):
                word = word.rstrip(".")
                if word in COMING | MADE_UP:
                    continue
                if re.match(r"(src|tools|ffi-tests|examples-c|libfabric-sys|cmake|docs|python|integrations|fuzz|loom|rust|weft-bench|include)/", word):
                    if word not in FILES and word.rstrip("/") not in folders and f"{word}.c" not in FILES:
                        yield f"{path}: {word}: there is none"
                elif path in ("ARCHITECTURE.md", "CONTRIBUTING.md") and re.fullmatch(r"[\w/.-]+\.(rs|hpp?|c|py|sh)", word):
                    if word not in tails:
                        yield f"{path}: {word}: no such file"
    for folder in sorted(f for f in os.listdir(os.path.join(ROOT, "src")) if "." not in f):
        if f"`src/{folder}`" not in DOCUMENTS["ARCHITECTURE.md"]:
            yield f"ARCHITECTURE.md: src/{folder} is not in it"


def hostile_tests():
    """Each cell of the tables of attackers names a test, says what it is like, or what protects and what does not."""
    tests = "".join(read(path) for path in FILES if re.match(r"(src|ffi-tests)/.*\.(rs|c|cpp|py)$", path))
    page = "docs/security.md"
    rows = DOCUMENTS[page].partition("## Who can do what")[2].partition("\n## ")[0]
    for cell in re.findall(r"`([\w.]+)`", rows):
        name = cell.rpartition(".")[2]
        if name.count("_") > 1 and cell not in HEADER and not re.search(rf'fn {name}\(|"{name}"', tests):
            yield f"{page}: {cell}: there is no such test"
    for row in re.findall(r"^\| (?!attacker|---)(.*) \|$", rows, re.M):
        for cell in row.split(" | ")[1:]:
            if not re.search(r"`|protect|\bas\b|cannot|guess|the same|is a peer|not in|reads what|is no peer|^-$", cell):
                yield f"{page}: {cell!r} names no test"


def workflows():
    """.github: YAML, of which each step that runs something runs a target of make, .ci/run or rustup."""
    try:
        import yaml  # pylint: disable=import-outside-toplevel
    except ImportError:
        print("skipped: .github is not parsed: python3-yaml is missing")
        yaml = None
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.M))
    folder = os.path.join(ROOT, ".github")
    paths_of = sorted(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith(".yml"))
    for path in paths_of:
        text, path = read(path), os.path.relpath(path, ROOT)
        try:
            parsed = yaml.safe_load(text) if yaml else None
        except yaml.YAMLError as error:
            yield f"{path}: {' '.join(str(error).split())}"
            continue
        if yaml and "workflows" in path:
            for name, job in parsed["jobs"].items():
                if not {"runs-on", "steps", "timeout-minutes"} <= set(job):
                    yield f"{path}: {name}: has no runs-on, steps or timeout-minutes"
        elif yaml and not {"name", "description", "body"} <= set(parsed):
            yield f"{path}: has no name, description or body"
        called = re.findall(r"- run: (.*)", text)
        if lists := re.findall(r"target: \[(.*)\]", text):
            called += ["make " + one.strip(' "') for one in lists[0].split(",")]
        for command in called:
            words = command.split()
            known = words[0] in (".ci/run", "rustup") or words[0] == "make" and (words[1] in targets or words[1] == "${{")
            if not known:
                yield f"{path}: {command}: is no target of make"


def metrics():
    """docs/metrics.md has the metrics that the library writes, and their kinds."""
    listed = re.findall(r"^\| `(weft_\w+)` \| (\w+) \|", DOCUMENTS["docs/metrics.md"], re.M)
    for name in metric_names().symmetric_difference(name for name, _ in listed):
        yield f"{name}: in only one of docs/metrics.md and src/calls/metrics.rs"
    for name, kind in listed:
        if (kind == "counter") != name.endswith("_total"):
            yield f"docs/metrics.md: {name}: a {kind}, by its name"


CHECKS = {
    "workflows and issue forms are what they should be": workflows,
    "links lead somewhere": links,
    "docs/troubleshooting.md has every status": statuses,
    "docs/configuration.md has every field and variable": settings,
    "docs/metrics.md has every metric": metrics,
    "ranges and defaults are those of the code": ranges,
    "functions and constants are in the headers": names,
    "messages name what is in the header": messages,
    "commands exist": commands,
    "CONTRIBUTING.md has every target": listed_targets,
    "files exist, and ARCHITECTURE.md has every floor": paths,
    "tests named for attackers exist": hostile_tests,
}


def main():
    failed = 0
    for title, check in CHECKS.items():
        wrong = sorted(set(check()))
        for line in wrong:
            print(line)
        failed += bool(wrong)
        print(f"{'FAILED ' if wrong else 'ok     '} documents: {title}")
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
