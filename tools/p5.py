#!/usr/bin/env python3
"""Two p5 in a box: 32 emulated EFA NICs for each of two hosts (tools/efa), below libfabric's own efa provider.

    tools/p5.py [LIBDIR]        LIBDIR: where weft-bench is (target/release)

Moves pages of 64 KiB from one host to the other over all 32 NICs, and leaves out one technique after the other (warm-up,
threads, pinning, sharded claims, batches, lazy posting): as share of the line, each NIC limited to MBPS (100) so that few
cores carry them; as Gbps without that limit, which the emulator bounds; and, of what is in each worker's path, as slices
of 4 KiB a second of one worker's processor over simulated NICs without limit (sim_mslices_per_s). In the middle of one more
load a NIC dies: what of the line there was before, at the worst and afterwards, and that nothing was lost. Also counts the
NICs that each GPU's process gets by default. The CPU moves the bytes here, so no rate is a p5's; and where few CPUs are, one worker
has all NICs anyway: what threads and pinning are worth shows on 16 or more.

TURN: seconds of one load (3). ROUNDS: medians of so many (3). Leaves target/p5.json, target/p5.svg, and in target/figures
p5_box_line_share, p5_box_steps.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EFA = ROOT / "tools/efa/efa.sh"
NICS, GPUS, PAGE = 32, 8, 65536
MBPS, TURN_S, ROUNDS = (int(os.environ.get(name, default)) for name, default in (("MBPS", 100), ("TURN", 3), ("ROUNDS", 3)))
#: The NIC that dies, a third into a load of so many seconds.
DYING, DEATH_S = 5, 5 * TURN_S
#: A load that takes longer has failed.
ENDS_S = 120 + 20 * TURN_S
#: What is left out: a name, what that means, variables, and options in place of the usual ones.
STEPS = [
    ("all", "every technique", {}, {}),
    ("warm-up", "the first transfer alone", {}, {"--repeat": "1", "--cold": None, "--seconds": None}),
    ("threads", "one worker for all 32 NICs", {}, {"--workers": "1"}),
    ("pinning", "workers move between CPUs", {"WEFT_SIM_WITHOUT": "pinning"}, {}),
    ("sharding", "each slice is claimed alone, from shared state", {"WEFT_SIM_WITHOUT": "sharding"}, {}),
    ("batches", "each post rings the doorbell", {"WEFT_SIM_WITHOUT": "batches"}, {}),
    ("lazy posting", "as many posts as the NIC takes", {"WEFT_SIM_WITHOUT": "lazy-posting"}, {}),
]


class Box:
    """The two hosts' NICs."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="p5-", dir=ROOT / "target")
        environment = {**os.environ, "EFA_HOSTS": "2", "EFA_GPUS": str(GPUS)}
        subprocess.run([EFA, "start", self.folder.name, str(NICS)], env=environment, check=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run([EFA, "stop", self.folder.name], check=False)
        self.folder.cleanup()

    def tell(self, *words):
        subprocess.run([EFA, "tell", self.folder.name, *words], check=True)

    def bytes_of(self, nic):
        counts = subprocess.run([EFA, "tell", self.folder.name, "counts"], stdout=subprocess.PIPE, text=True, check=True).stdout
        return int(re.search(rf"^nic {nic}: .* bytes (\d+)", counts, re.M).group(1))

    def start(self, host, command, variables=None, **how):
        environment = {**os.environ, "EFA_HOST": str(host), "WEFT_EFA_EMULATED": "1", **(variables or {})}
        environment["EFA_FOLDERS"] = str(ROOT)
        return subprocess.Popen([EFA, "run", self.folder.name, *map(str, command)], env=environment, text=True,
                                stdout=subprocess.PIPE, **how)


def rails_of_gpus(box, bench):
    """How many NICs the process of each GPU gets, if it names none."""
    found = []
    for gpu in range(GPUS):
        shown, _ = box.start(0, [bench, "topo"], {"CUDA_VISIBLE_DEVICES": str(gpu)}, stderr=subprocess.DEVNULL).communicate()
        found.append(len(re.findall(r"^ +rail +\d+ efa", shown, re.M)))
    return found


def load(box, bench, variables, changed, meanwhile=lambda running: None):
    """One load; its report, or None and what weft-bench said."""
    options = {"--provider": "efa", "--page": str(PAGE), "--pages": "1024", "--in-flight": "4", "--seconds": str(TURN_S), **changed}
    mine = {name: value for name, value in options.items() if value is not None or name in ("--cold", "--verify")}
    both = {name: value for name, value in mine.items() if name in ("--provider", "--workers")}
    words = lambda chosen: [word for pair in chosen.items() for word in pair if word is not None]
    serving = box.start(1, [bench, "serve", "--listen", "127.0.0.1:0", "--once", *words(both)], variables, stderr=subprocess.STDOUT)
    place = None
    for line in serving.stdout:
        place = re.search(r"127\.0\.0\.1:\d+", line)
        if place:
            break
    if not place:
        sys.exit("weft-bench serve did not start")
    running = box.start(0, [bench, "run", "--connect", place.group(), "--json", "-", *words(mine)], variables, stderr=subprocess.PIPE)
    meanwhile(running)
    try:
        shown, said = running.communicate(timeout=ENDS_S)
    except subprocess.TimeoutExpired:
        running.kill()
        serving.kill()
        shown, said = running.communicate()[0], f"no end within {ENDS_S} s"
    serving.stdout.read()
    serving.wait(timeout=60)
    report = None if running.returncode else json.loads(shown)
    if report and len(report["rails"]) != NICS:
        sys.exit(f"{len(report['rails'])} rails, not {NICS}")
    return report, said.strip()


def measure(box, bench, step):
    """One load with a technique left out, in gigabits a second."""
    report, said = load(box, bench, *step[2:])
    if not report:
        sys.exit(f"weft-bench run failed without {step[0]}: {said}")
    return report["gbps"]


def one_nic_dies(box, bench):
    """A NIC of the side that writes dies in the middle of a load, every byte of which is verified."""
    died = []

    def die(running):
        while running.poll() is None and box.bytes_of(DYING) < MBPS * 125_000:  # a second's
            time.sleep(0.2)
        time.sleep(DEATH_S / 3)
        died.append(time.time())
        box.tell("nic", str(DYING), "dead")

    report, said = load(box, bench, {}, {"--seconds": str(DEATH_S), "--verify": None}, die)
    box.tell("nic", str(DYING), "whole")
    found = {"nic": DYING, "lost": not report, "why": "" if report else said.splitlines()[-1] if said else "no reason"}
    if not report:
        return found
    share = lambda gbps: round(gbps * 1000 / (NICS * MBPS), 3)
    before = [gbps for at, gbps in report["rates"] if at < died[0]][2:]
    after = [(at - died[0], gbps) for at, gbps in report["rates"] if at >= died[0]]
    steady = statistics.median(gbps for _, gbps in after[len(after) // 2:])
    slow = [at for at, gbps in after if gbps < 0.9 * steady]
    found.update(before=share(statistics.median(before)), worst=share(min(gbps for _, gbps in after)), after=share(steady),
                 others_carry_after_s=round(max(slow, default=0), 2), verified=report["verified"], rates=report["rates"])
    return found


def tell_of_death(found):
    if found["lost"]:
        print(f"NIC {found['nic']} dies under load: the load failed: {found['why']}")
        return
    print(f"NIC {found['nic']} of {NICS} dies under load: {found['before']:.3f} of the line before, {found['worst']:.3f} at the worst, "
          f"{found['after']:.3f} once the others carry, after {found['others_carry_after_s']:.2f} s; no operation failed, every byte verified")


def of_a_processor(bench, step):
    """Million slices a second of one worker's processor, over simulated NICs."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([bench, "figures", "--only", "sim_mslices_per_s", "--json", file.name], env={**os.environ, **step[2]},
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.load(file)["sim_mslices_per_s"]


def table(rows):
    print(f"{'without':14}{'of the line':>12}{'no limit, Gbps':>16}{'Mslices/s of a worker (simulated)':>35}")
    for row in rows:
        simulated = row["sim_mslices_per_s"]
        bar = "█" * round(simulated) if simulated else ""
        name = "nothing" if row["step"] == "all" else row["step"]
        print(f"{name:14}{row['line_share']:>12.3f}{row['gbps_without_limit']:>16.2f}"
              f"{f'{simulated:.1f}' if simulated else '-':>10} {bar:26} {row['means']}")


def picture(rows, death):
    """Three bars for each technique: of the line, and of the best without the limit and of a worker; and the line while a NIC dies."""
    bars = (("line_share", "#4878a8", "{:.3f} of the line"), ("gbps_without_limit", "#d88c3a", "{:.1f} Gbps without the limit"),
            ("sim_mslices_per_s", "#6a9f58", "{:.1f} Mslices/s of a worker, simulated NICs"))
    parts, y = [], 40
    for row in rows:
        name = "with everything" if row["step"] == "all" else f"without {row['step']}"
        parts.append(f'<text x="162" y="{y + 12}" text-anchor="end">{name}</text>')
        for field, colour, text in bars:
            if row[field] is None:
                continue
            long = 360 * row[field] / max(1 if field == "line_share" else 0, *(other[field] or 0 for other in rows))
            parts.append(f'<rect x="170" y="{y}" width="{max(1, long):.0f}" height="11" fill="{colour}"/>'
                         f'<text x="{178 + long:.0f}" y="{y + 10}">{text.format(row[field])}</text>')
            y += 13
        y += 10
    if not death["lost"]:
        begun, top = death["rates"][0][0], NICS * MBPS / 1000
        long = max(death["rates"][-1][0] - begun, 1)
        points = " ".join(f"{170 + 360 * (at - begun) / long:.0f},{y + 60 - 55 * gbps / top:.0f}" for at, gbps in death["rates"])
        parts.append(f'<text x="162" y="{y + 35}" text-anchor="end">one NIC dies</text><polyline points="{points}" fill="none" stroke="#4878a8"/>'
                     f'<text x="538" y="{y + 35}">{death["before"]:.3f}, {death["worst"]:.3f}, {death["after"]:.3f} of the line</text>')
        y += 70
    title = f'<text x="10" y="22" font-size="15">Two p5 in a box: {2 * NICS} emulated EFA NICs of {MBPS} Mbit/s</text>'
    (ROOT / "target/p5.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {y + 10}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="#fff"/>{title}{"".join(parts)}</svg>\n')


def main():
    bench = (ROOT / (sys.argv[1] if len(sys.argv) > 1 else "target/release") / "weft-bench").resolve()
    rows = {name: {"step": name, "means": means, "line": [], "free": [], "simulated": []} for name, means, *_ in STEPS}
    if "EFA_ROOT" not in os.environ:  # libfabric 2.1, if a root of Debian 13 can be had: 1.17 emulates writes
        made = subprocess.run([ROOT / "tools/test-efa.sh", "--root", "21"], stdout=subprocess.PIPE, text=True, check=False)
        os.environ["EFA_ROOT"] = made.stdout.strip() if made.returncode == 0 else ""
    print("libfabric:", "Debian 13's" if os.environ["EFA_ROOT"] else "this system's")
    with Box() as box:
        rails = rails_of_gpus(box, bench)
        print("NICs of each GPU's process:", *rails, flush=True)
        for turn in range(ROUNDS):
            for limit in (MBPS, 0):
                box.tell("nic", "all", "rate", str(limit))
                for step in STEPS:
                    gbps = measure(box, bench, step)
                    rows[step[0]]["line" if limit else "free"].append(gbps)
                    print(f"round {turn + 1}: without {step[0]}, {limit or 'no'} Mbit/s: {gbps:.2f} Gbps", file=sys.stderr, flush=True)
            for step in (step for step in STEPS if not step[3]):
                rows[step[0]]["simulated"].append(of_a_processor(bench, step))
        box.tell("nic", "all", "rate", str(MBPS))
        death = one_nic_dies(box, bench)
    for row in rows.values():
        row["line_share"] = statistics.median(row.pop("line")) * 1000 / (NICS * MBPS)
        row["gbps_without_limit"] = statistics.median(row.pop("free"))
        simulated = row.pop("simulated")
        row["sim_mslices_per_s"] = statistics.median(simulated) if simulated else None
    rows = list(rows.values())
    table(rows)
    tell_of_death(death)
    picture(rows, death)
    result = {"emulated": True, "cores": os.cpu_count(), "nics": NICS, "mbps": MBPS, "rails_of_gpus": rails, "steps": rows, "one_nic_dies": death}
    (ROOT / "target/p5.json").write_text(json.dumps(result, indent=1) + "\n")
    print("target/p5.json, target/p5.svg. Emulated and simulated: the CPU moves the bytes.")
    figures = ROOT / "target/figures"
    figures.mkdir(parents=True, exist_ok=True)
    for name, value in (("p5_box_line_share", f"{rows[0]['line_share']:.3f}"), ("p5_box_steps", len(rows) - 1)):
        print(f"{name}: {value}")
        (figures / name).write_text(f"{value}\n")


if __name__ == "__main__":
    main()
