#!/usr/bin/env python3
"""Answers Prometheus for all processes of this user that offer metrics (WEFT_METRICS_SOCKET=1).

    python exporter.py [--listen 127.0.0.1:9464] [--folder DIR] [--host NAME]

Each process becomes an instance, "program:pid", of a host; with `honor_labels: true` in its job Prometheus keeps these labels. Processes
of two containers may have the same pid: the label host, by default the container's name, keeps them apart. It needs nothing but Python.
"""

import argparse
import os
import socket
import stat
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def own_folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "weft" if runtime else Path(f"/tmp/weft-{os.geteuid()}")


def is_own(folder: Path) -> bool:
    """Others could say anything in a folder that is not this user's alone."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def ask(path: Path) -> str:
    """What an endpoint says; nothing if its process has ended or is stopped, or of a text that was cut off."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(2)
        try:
            asked.connect(str(path))
            parts = iter(lambda: asked.recv(1 << 16), b"")
            text = b"".join(parts).decode()
        except (OSError, UnicodeDecodeError):
            return ""
    return text if text.endswith("\n") else ""


def instance(path: Path) -> str:
    pid = path.name.partition("-")[0]
    try:
        return f"{Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()}:{pid}"
    except OSError:
        return pid


def escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def metrics(folder: Path, host: str) -> str:
    """The texts of all endpoints as one: each metric's lines must be together."""
    if not folder.exists() or not is_own(folder):
        return ""
    heads: "dict[str, list[str]]" = defaultdict(list)
    samples: "dict[str, list[str]]" = defaultdict(list)
    paths = sorted(folder.glob("[!.]*.sock"))
    with ThreadPoolExecutor(32) as pool:  # a process that is stopped keeps no other's from Prometheus
        texts = list(pool.map(ask, paths))
    for path, text in zip(paths, texts):
        process, endpoint = escaped(instance(path)), path.stem.partition("-")[2]
        labels, name = f'host="{escaped(host)}",instance="{process}",endpoint="{endpoint}"', ""
        for line in text.splitlines():
            if line.startswith("#"):
                name = line.split()[2]
                if line not in heads[name]:
                    heads[name].append(line)
                continue
            series, value = line.rsplit(" ", 1)
            series, _, others = series.partition("{")
            samples[name].append(f"{series}{{{labels}{',' + others if others else '}'} {value}")
    return "".join("\n".join(heads[name] + samples[name]) + "\n" for name in heads)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--listen", default="127.0.0.1:9464")
    arguments.add_argument("--folder", type=Path, default=own_folder())
    arguments.add_argument("--host", default=socket.gethostname(), help="the label host (the name of this host)")
    given = arguments.parse_args()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = metrics(given.folder, given.host).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    host, _, port = given.listen.rpartition(":")
    ThreadingHTTPServer((host.strip("[]"), int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
