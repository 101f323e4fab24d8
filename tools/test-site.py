#!/usr/bin/env python3
"""The site that tools/docs.py built: every link and anchor of its pages, and its pages in headless Chromium.

Leaves doc_links_dead in target/figures, and pictures of pages, light and dark, in target/docs/screens.
"""

import functools
import http.server
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "target/docs/site"
SCREENS = ROOT / "target/docs/screens"
SHOWN = ("index", "docs/concepts", "docs/compare", "docs/reference")
PHONE = 390
FUNCTION = "weft_grant_revoke"
# Looks for a function, and says how wide each page is in a window as wide as a phone's. It posts both to the server: a browser
# that is to print a page when its scripts are done counts in virtual time, which stands still for good at times.
HARNESS = """<!doctype html><body><script>(async () => {
async function opened(page) {
  const frame = document.createElement("iframe");
  frame.style = "width: WIDTHpx; height: 844px; border: 0";
  frame.src = page;
  const loaded = new Promise(done => frame.onload = done);
  document.body.append(frame);
  await loaded;
  return frame;
}
const search = await opened("index.html?q=NAME");
let hit = null;
for (let tries = 0; !hit && tries < 600; tries++) {
  await new Promise(done => setTimeout(done, 100));
  hit = search.contentDocument.querySelector("a[href*='docs/reference.html'][href$='#NAME']");
}
search.remove();
const widths = [];
for (const page of PAGES) {
  const frame = await opened(page);
  widths.push([page, frame.contentDocument.documentElement.scrollWidth]);
  frame.remove();
}
await fetch("said", {method: "POST", body: JSON.stringify({hit: hit && hit.href, widths})});
})()</script>"""


class Page(HTMLParser):
    """What it links to, and what can be linked to in it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = set(), {"", "__comments"}
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name == "srcset" and value:
                self.links.update(part.split()[0] for part in value.split(","))
            elif name == "id" or name == "name" and tag == "a":
                self.anchors.add(value)


def pages():
    """Those of Weft's documents: what rustdoc makes is checked by it."""
    return sorted(path for path in SITE.rglob("*.html") if path.relative_to(SITE).parts[0] != "rust" or path.name == "index.html"
                  and path.parent == SITE / "rust")


def names():
    """Pages that a browser opens: no listings of sources."""
    return [str(path.relative_to(SITE)) for path in pages() if path.name != "404.html" and path.suffixes == [".html"]]


def links():
    page = functools.lru_cache(None)(Page)
    followed = 0
    for path in pages():
        if path.name == "404.html":  # its links begin at the server's root
            continue
        for link in sorted(page(path).links):
            to = urllib.parse.urlsplit(link)
            if to.scheme or to.netloc:
                continue
            followed += 1
            target = (path.parent / urllib.parse.unquote(to.path)).resolve() if to.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = urllib.parse.unquote(to.fragment)
            if not target.exists():
                yield f"{path.relative_to(SITE)}: {link}: no such page"
            elif anchor and target.suffix == ".html" and anchor not in page(target).anchors:
                yield f"{path.relative_to(SITE)}: {link}: no such anchor"
    print(f"{followed} links followed; those to other sites are not")


class Browser:
    def __init__(self, program, server):
        self.command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        self.site = f"http://127.0.0.1:{server.server_address[1]}/"
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, subprocess.Popen(
                [*self.command, f"--user-data-dir={profile}", "--remote-debugging-port=0", self.site + "harness.html"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
            try:
                self.said = server.said.get(timeout=300)
            except queue.Empty:
                self.said = {"hit": None, "widths": []}
            browser.terminate()

    def run(self, page, *options):
        subprocess.run([*self.command, *options, self.site + page], capture_output=True, timeout=300, check=True)

    def search(self):
        """The search finds a function in the reference."""
        if not self.said["hit"]:
            yield f"{FUNCTION} is not found"

    def phone(self):
        """No page is wider than a phone."""
        if len(self.said["widths"]) != len(names()):
            yield f"only {len(self.said['widths'])} of {len(names())} pages were loaded"
        for name, width in self.said["widths"]:
            if width > PHONE:
                yield f"{name}: {width} px wide in a window of {PHONE}"

    def screens(self):
        """Light and dark differ, and are left to be looked at."""
        SCREENS.mkdir(exist_ok=True)
        for page in SHOWN:
            taken = []
            for scheme, number in (("dark", 0), ("light", 1)):
                picture = SCREENS / f"{os.path.basename(page)}-{scheme}.png"
                self.run(f"{page}.html", f"--blink-settings=preferredColorScheme={number}", "--window-size=1400,1200",
                         f"--screenshot={picture}")
                taken.append(picture.read_bytes())
            if taken[0] == taken[1]:
                yield f"{page}: the same in light and dark"


class Server(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/harness.html":
            return super().do_GET()
        text = HARNESS.replace("PAGES", json.dumps(names())).replace("WIDTH", str(PHONE)).replace("NAME", FUNCTION).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self):
        self.server.said.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    if not (SITE / "index.html").exists():
        print("skipped: there is no site in target/docs: make docs")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    dead = list(links())
    figures = ROOT / "target/figures"
    figures.mkdir(exist_ok=True)
    (figures / "doc_links_dead").write_text(f"{len(dead)}\n")
    print(f"doc_links_dead: {len(dead)}")
    checks = [("links and anchors lead somewhere", lambda: dead)]
    program = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=SITE))
    server.said = queue.Queue()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if program:
        browser = Browser(program, server)
        checks += [(f"the search finds {FUNCTION}", browser.search), ("no page scrolls sideways on a phone", browser.phone),
                   ("pages are shown in light and in dark", browser.screens)]
    else:
        print("skipped: the site was opened in no browser: chromium is missing")
    failed = 0
    for title, check in checks:
        wrong = list(check())
        print(*wrong, sep="\n", end="\n" if wrong else "")
        failed += bool(wrong)
        print(f"{'FAILED ' if wrong else 'ok     '} site: {title}")
    server.shutdown()
    print(f"{len(checks) - failed} passed, {failed} failed, {0 if program else 3} skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
