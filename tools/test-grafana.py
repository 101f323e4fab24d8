#!/usr/bin/env python3
"""The dashboard of grafana/ beside a real Prometheus: each panel's query returns data of a load that runs.

    tools/test-grafana.py WEFT_BENCH

Two processes move pages over tcp and offer their metrics by sockets, examples-python/exporter.py answers Debian's prometheus, and each
expression of the dashboard is asked of it, as Grafana does. Debian's packages are unpacked into target/prometheus; nothing is
installed. Leaves in target/figures: dashboard_queries_empty, of all expressions those that returned nothing.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
THERE = ROOT / "target/prometheus"
CONFIG = """
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: weft
    honor_labels: true
    static_configs: [{targets: ["127.0.0.1:EXPORTER"]}]
"""


def prometheus():
    """Debian's, which needs none of its dependencies to answer queries."""
    program = THERE / "usr/bin/prometheus"
    if not program.exists():
        THERE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-q", "prometheus"], cwd=THERE, check=True)
        subprocess.run(["dpkg", "-x", *THERE.glob("prometheus_*.deb"), THERE], check=True)
    return program


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def running(*command, log, **environment):
    with open(log, "w", encoding="utf-8") as out:
        with subprocess.Popen(command, stdout=out, stderr=out, env=dict(os.environ, **environment)) as process:
            try:
                yield process
            finally:
                process.terminate()


def query(port, expression):
    """The samples of an expression; an error of it is one."""
    asked = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{asked}", timeout=20) as answer:
        said = json.load(answer)
    assert said["status"] == "success", said
    return said["data"]["result"]


def expressions():
    """Of each panel, with what Grafana puts in the place of its variables."""
    for panel in json.loads((ROOT / "grafana/weft.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*").replace("$host", "here")


def main(bench):
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        sockets, config, exporter, port = folder / "weft", folder / "config.yml", free_port(), free_port()
        config.write_text(CONFIG.replace("EXPORTER", str(exporter)))
        start = lambda name, *command, **environment: stack.enter_context(  # noqa: E731
            running(*command, log=folder / f"{name}.log", **environment))
        start("load", bench, "loopback", "--provider", "tcp", "--rail-names", "lo", "--seconds", "600", WEFT_METRICS_SOCKET=str(sockets))
        start("exporter", sys.executable, ROOT / "examples-python/exporter.py", "--listen", f"127.0.0.1:{exporter}", "--folder", sockets,
              "--host", "here")
        start("prometheus", prometheus(), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
              f"--web.listen-address=127.0.0.1:{port}")
        asked, empty, until = list(expressions()), [], time.monotonic() + 120
        while time.monotonic() < until:
            try:
                empty = [(title, text) for title, text in asked if not query(port, text)]
                # Both processes, and bytes that move.
                rate = "sum(rate(weft_rail_bytes_total[10s])) > 0"
                if not empty and query(port, rate) and query(port, "sum(weft_peers) > 1"):
                    break
            except OSError:
                empty = asked
            time.sleep(1)
        else:
            for log in sorted(folder.glob("*.log")):
                print(f"{log.name}:", *log.read_text().splitlines()[-5:], sep="\n    ")
        for title, text in empty:
            print(f"FAILED  {title}: {text} returns nothing")
        names = {sample["metric"].get("instance") for sample in query(port, "weft_peers")}
        print(f"{len(asked) - len(empty)} expressions of {len(asked)} return data of {', '.join(sorted(names))}")
    (ROOT / "target/figures").mkdir(parents=True, exist_ok=True)
    (ROOT / "target/figures/dashboard_queries_empty").write_text(f"{len(empty)}\n")
    return bool(empty) or time.monotonic() >= until


sys.exit(main(*sys.argv[1:]))
