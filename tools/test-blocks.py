#!/usr/bin/env python3
"""Runs the blocks of code of the documents:     tools/test-blocks.py LIBRARY_FOLDER [--not-the-shell] [PART_OF_A_PAGE]...

What a page takes for granted is in tools/blocks: PAGE.c, PAGE.cpp and PAGE.py have a line BLOCKS where those of the page go, one after
the other; PAGE.sh comes before each block of the shell. An indented block is one of the shell, but in a list. These run as root, in
a network namespace of their own with HOST and FIRST as itself, in a folder with links to the repository's files; what goes on is left
to run beside the rest. A command that .ci/run has as a stage is run there.

A comment in the line before a block says otherwise:
    block: LANGUAGE                text is no code
    block: run by FILE...          its words are in one of these files, or its page is
    block: not run: WHY

Leaves doc_blocks_run in target/figures: the share that was run, in percent, if all pages were chosen.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GIVEN = ROOT / "tools/blocks"
PAGES = ("*.md", "docs/*.md", "python/*.md", "rust/**/*.md", "examples-*/**/*.md", "tools/efa/*.md")
#: Declarations, made of the header and of the package.
MADE = {"docs/reference.md", "docs/python.md"}
NO_CODE = {"text", "yaml", "json", "toml", ""}
C_BEFORE = """#include <stdio.h>
#include <stdlib.h>
#define CHECK(call) do { if ((call) < 0) { fprintf(stderr, "%s: %s\\n", #call, weft_last_error()); exit(1); } } while (0)
"""
SH_BEFORE = """set -eu
ip link set lo up
beside() { # STATE_AND_PORT COMMAND...: until a connection is so
    local socket=$1
    shift
    "$@" & until ss -Htn state $socket | grep -q . || ! kill -0 $!; do sleep 0.1; done
    kill -0 $!
}
make() { (cd "$ROOT" && command make "$@"); }
cargo() { (cd "$ROOT" && command cargo "$@"); }
"""
#: What a block asks of a machine is made smaller.
SMALLER = [(r"\b(?:HOST|FIRST|10\.0\.0\.7)\b", "127.0.0.1"), (r"/nvme/", "./"), (r"/path/to/weft", str(ROOT)), (r"--layers 80", "--layers 2"), (r"figures --(?=only|markdown)", "figures --quick --")]
GOES_ON = re.compile(r"(?:weft-bench|libweft\.\w+|parameter_server) (?:serve|store|work)\b")


@dataclass
class Block:
    page: str
    line: int
    language: str
    code: str
    marker: str

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks_of(page):
    lines = (ROOT / page).read_text().split("\n")
    at, before, outer = 0, "", ""
    while at < len(lines):
        line, begin = lines[at], at
        fence = re.match(r"```([\w+]*)$", line)
        if fence:
            at = next(end for end in range(at + 1, len(lines)) if lines[end] == "```") + 1
            language, code = fence[1], lines[begin + 1:at - 1]
        elif re.match(r"    [^|]", line) and (at == 0 or not lines[at - 1].strip()) and not re.match(r"\d+\. |- ", outer):
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            language, code = "sh", [line[4:] for line in lines[begin:at]]
        else:
            at += 1
            before, outer = line if line.strip() else before, line if line[:1].strip() else outer
            continue
        marker = re.match(r"<!-- block: (.*) -->$", before)
        before, marker = "", marker[1] if marker else ""
        if re.fullmatch(r"\w+", marker):
            language = marker
        elif language == "no_run":
            language = "rust"
        yield Block(page, begin + 1, language, "\n".join(code).rstrip() + "\n", marker)



def given(page, suffix):
    path = GIVEN / (Path(page).stem + suffix)
    return path.read_text() if path.exists() else None


def finished(command, seconds=600, **more):
    """Nothing if it ends well, and what it says otherwise."""
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=seconds, check=False, **more)
    except subprocess.TimeoutExpired:
        return f"not over after {seconds} s"
    return None if run.returncode == 0 else f"status {run.returncode}\n" + "\n".join(run.stdout.split("\n")[-25:])


class Runner:
    def __init__(self, library, scratch):
        self.library, self.scratch = library.resolve(), scratch
        self.stages = re.findall(r"^stage (make .+)$", (ROOT / ".ci/run").read_text(), re.M)
        self.library.joinpath("libweft.so.0").exists() or self.library.joinpath("libweft.so.0").symlink_to("libweft.so")
        for path in ROOT.iterdir():
            if not path.name.startswith(".") and path.name != "docs":
                (scratch / path.name).symlink_to(path)
        subprocess.run(["cp", "-r", ROOT / "docs", scratch], check=True)
        for name, program in (("python", sys.executable), ("libweft.so.0", self.library / "libweft_simulated.so")):
            (scratch / ".with").mkdir(exist_ok=True)
            (scratch / ".with" / name).symlink_to(program)
        self.environment = dict(os.environ, ROOT=str(ROOT), WEFT_LIBRARY=str(self.library / "libweft.so"), PYTHONDONTWRITEBYTECODE="1",
                                PYTHONPATH=str(ROOT / "python/src"), LD_LIBRARY_PATH=str(self.library),
                                PATH=f"{self.library}:{scratch}/.with:{os.environ['PATH']}")

    def c(self, page, blocks, suffix=".c", compiler=("CC", "cc", "-std=gnu11"), header="weft.h"):
        context = given(page, suffix) or "BLOCKS"
        simulated = "weft_simulated" in context
        environment = dict(self.environment, LD_LIBRARY_PATH=str(self.scratch / ".with")) if simulated else self.environment
        code = "".join(f'#line {block.line + 1} "{page}"\n{block.code}' for block in blocks)
        before = f"#include <{header}>\n" + C_BEFORE * ("CHECK(" in code + context and "define CHECK" not in code)
        source, program = self.scratch / f"blocks{suffix}", self.scratch / "blocks"
        source.write_text(before + re.sub(r"^ *BLOCKS$", lambda _: code, context, flags=re.M))
        return finished([os.environ.get(*compiler[:2]), *compiler[2:], "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", source,
                         f"-L{self.library}", "-lweft", "-o", program]) or finished(
                             [program], env=environment)

    def cpp(self, page, blocks):
        return self.c(page, blocks, ".cpp", ("CXX", "c++", "-std=c++17", "-fno-exceptions"), "weft.hpp")

    def python(self, page, blocks):
        source = self.scratch / "blocks.py"
        code = "".join(block.code for block in blocks)
        source.write_text(re.sub(r"^BLOCKS$", lambda _: code, given(page, ".py") or "BLOCKS", flags=re.M))
        return finished([sys.executable, source], cwd="/", env=self.environment)

    def command(self, line):
        """A line of the shell as it is run here; nothing if it is a stage of .ci/run."""
        if " ".join(shlex.split(line, comments=True)) in self.stages:
            return None
        for was, becomes in SMALLER:
            line = re.sub(was, becomes, line)
        if goes_on := GOES_ON.search(line):
            port = re.search(r"(?:--listen|serve|work) \S*?(\d+) ", line + " ")
            socket = "connected dport" if goes_on[0].endswith("work") else "listening sport"
            return f"beside '{socket} = :{port[1] if port else 4711}' {line}"
        return line

    def sh(self, page, blocks):
        code = re.sub(r"\\\n *", "", blocks[0].code)
        lines = [made for line in code.split("\n") if (made := self.command(line)) is not None]
        script = self.scratch / "blocks.sh"
        script.write_text(SH_BEFORE + (given(page, ".sh") or "") + "\n".join(lines))
        return finished(["unshare", "-nmpf", "--kill-child", "--mount-proc", "bash", script], cwd=self.scratch, env=self.environment)


def run_elsewhere(block):
    """Whether what a marker says of files is so."""
    for path in re.findall(r"[\w./-]+", block.marker.partition("run by ")[2]):
        text = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
        words = set(re.findall(r"[\w.-]{6,}", block.code))
        if not text:
            yield f"{block}: {path}: no such file"
        elif block.page not in text and 2 * sum(word in text for word in words) < len(words):
            yield f"{block}: {path} has nothing of it"


def main():
    short = "--not-the-shell" in sys.argv
    library, chosen = Path(sys.argv[1]), [part for part in sys.argv[2:] if not part.startswith("--")]
    pages = [str(path.relative_to(ROOT)) for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    blocks = [block for page in pages if page not in MADE and (not chosen or any(part in page for part in chosen))
              for block in blocks_of(page) if block.language not in NO_CODE and not (short and block.language == "sh")]
    ran, wrong, groups = 0, [], {}
    for block in blocks:
        if block.marker.startswith("not run: "):
            print(f"not run {block}: {block.marker[9:]}")
        elif block.marker.startswith("run by "):
            problems = list(run_elsewhere(block))
            wrong += problems
            ran += not problems
        else:
            whole = block.language in ("c", "cpp", "python") and "int main(" not in block.code
            groups.setdefault((block.page, block.language, 0 if whole else block.line), []).append(block)
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(library, Path(folder))
        for (page, language, _), group in groups.items():
            run = getattr(runner, language, None)
            if run is None:
                wrong.append(f"{group[0]}: what runs {language}?")
                continue
            if language == "sh" and os.geteuid() != 0:
                print(f"skipped {group[0]}: only root makes network namespaces")
                continue
            problem = run(page, group)
            print(f"{'FAILED ' if problem else 'ok     '} {', '.join(map(str, group))}", flush=True)
            if problem:
                wrong.append(f"{group[0]}: {problem}")
            else:
                ran += len(group)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    share = 100 * ran / max(len(blocks), 1)
    print(f"doc_blocks_run: {share:.1f} ({ran} of {len(blocks)})")
    if not chosen and not short:
        (ROOT / "target/figures").mkdir(parents=True, exist_ok=True)
        (ROOT / "target/figures/doc_blocks_run").write_text(f"{share:.1f}\n")
    print(f"{ran} passed, {len(wrong)} failed, {len(blocks) - ran - len(wrong)} skipped")
    return bool(wrong) or not (chosen or short) and share < 90


if __name__ == "__main__":
    sys.exit(main())
