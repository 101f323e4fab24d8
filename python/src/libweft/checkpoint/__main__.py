"""The commands: see `python -m libweft.checkpoint --help`."""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
from typing import Any, List

from .._safetensors import header_for, placed
from ..errors import WeftError
from ..weights import answer_at, answer_of, create, part_of, place_of, replacing, shards_of, shown, undo_at_signals
from . import Checkpoints, Store


def _store(given: Any) -> None:
    # Each file that is read or written has a descriptor.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with Store(given.folder, keep=given.keep) as store:
        answer_at(given.listen, f"keeping checkpoints in {store.folder}", store.manifest)


def _save(checkpoints: Checkpoints, given: Any) -> None:
    shards = [shard for path in given.files for shard in shards_of(path, direct=True)]
    began = time.monotonic()
    saving = checkpoints.save(given.step, shards, copy=False)
    saving.wait()
    print(f"step {given.step}: {len(shards)} tensors, {saving.total} bytes, of which {saving.skipped} were there, "
          f"{time.monotonic() - began:.2f} s")


def _load(checkpoints: Checkpoints, given: Any) -> None:
    part, parts = map(int, given.shard.split("/"))
    whole = placed(checkpoints.contents(given.step))
    cut = part_of(whole, part, parts)
    header = header_for({name: tensor for name, (tensor, _, _) in cut.items()}, align=4096)
    with replacing(given.out) as unfinished, shown() as progress:
        shards = [shard._replace(shape=whole[shard.name].shape, begin=cut[shard.name][1], end=cut[shard.name][2])
                  for shard in create(unfinished, header, direct=True)]
        began = time.monotonic()
        step = checkpoints.load(shards, given.step, progress=progress)
    print(f"step {step}: {len(shards)} tensors, {time.monotonic() - began:.2f} s")


def _list(checkpoints: Checkpoints, _: Any) -> None:
    for step in checkpoints.steps():
        copies = f", {step.copies} {'copy' if step.copies == 1 else 'copies'} of each" if step.copies else ""
        lacks = f", {len(step.missing)} files are on no store that is there" if step.missing else ""
        print(f"step {step.step}: {len(step.files)} {'file' if len(step.files) == 1 else 'files'}, {sum(step.files.values())} bytes{copies}{lacks}")


def _verify(checkpoints: Checkpoints, given: Any) -> None:
    bad: List[str] = checkpoints.verify(given.step)
    print("\n".join(bad) or f"all of it {'that is on the stores that answer ' if given.absent else ''}is what was saved")
    if bad:
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m libweft.checkpoint", description="Checkpoints in files of other hosts.")
    commands = parser.add_subparsers(dest="command", required=True)
    store = commands.add_parser("store", help="keeps checkpoints in a folder of this host")
    store.add_argument("--listen", type=place_of, required=True, metavar="HOST:PORT", help="where others ask for its address")
    store.add_argument("--keep", type=int, default=0, metavar="N", help="only the N steps that were committed last")
    store.add_argument("folder", metavar="FOLDER")
    others = {
        "save": (_save, "saves files of safetensors as a step"), "load": (_load, "writes a step, or a part of it, into a file"),
        "list": (_list, "lists the steps; ends with 3 if a store does not answer"),
        "verify": (_verify, "has the stores compare a step with its checksums; ends with 1 if something differs, else with 3 if a store does not answer"),
    }
    for name, (_, text) in others.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("--store", dest="stores", type=place_of, action="append", required=True, metavar="HOST:PORT",
                             help="a store; give it again for each further one")
        if name != "list":
            command.add_argument("--step", type=int, required=name == "save", metavar="N",
                                 help="the number of the step" if name == "save" else "default: the last one")
        if name == "save":
            command.add_argument("--copies", type=int, default=1, metavar="N", help="on how many stores each byte is")
            command.add_argument("files", nargs="+", metavar="FILE")
        if name == "load":
            command.add_argument("--out", required=True, metavar="FILE",
                                 help="a file of safetensors, which is replaced when everything is there")
            command.add_argument("--shard", default="0/1", metavar="I/N", help="rows of part I of N of each tensor")
    given = parser.parse_args()
    undo_at_signals()
    try:
        if given.command == "store":
            _store(given)
            return
        manifests, failed = [], []
        for host, port in given.stores:
            try:
                manifests.append(answer_of((host, port), "checkpoints"))
            except (OSError, ValueError) as error:
                failed.append(f"{host}:{port} offers no checkpoints: {error}")
        if failed and (given.command == "save" or not manifests):
            raise ConnectionError("; ".join(failed))
        for text in failed:  # the others may have copies
            print(text, file=sys.stderr)
        with Checkpoints(manifests, copies=getattr(given, "copies", 1)) as checkpoints:
            if failed and given.command in ("load", "verify") and given.step is None:
                last = checkpoints.steps()[-1:]
                if last and last[0].missing:
                    raise ConnectionError(f"step {last[0].step}, the last one, is not whole without these stores: --step takes an older one")
            looks = given.command in ("list", "verify")
            for absent in checkpoints._absent() if looks else ():
                failed.append(str(absent))
                print(absent, file=sys.stderr)
            given.absent = failed
            others[given.command][0](checkpoints, given)
            if looks and failed:
                sys.exit(3)
    except (OSError, ValueError, WeftError) as error:
        sys.exit(f"{given.command}: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
