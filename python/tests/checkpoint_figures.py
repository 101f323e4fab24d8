"""Saves and loads by torch.distributed.checkpoint, to the same disk: PyTorch's own files beside stores, in turns, until all is on
stable storage, and cold into memory that was touched. Prints how many times as long PyTorch's take, over each fabric, and leaves that
of the first one in target/figures: host, which a store and ranks of one host have by default; over tcp, stores of other hosts have. What others load safetensors with, if it is installed, reads the store's files in the same turns; that is shown.

    python checkpoint_figures.py GB [ROUNDS] [FABRICS]      with a torch: tools/test-dcp.sh LIBRARY_FOLDER figures GB
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed.checkpoint as dcp

from libweft.checkpoint.dcp import WeftReader, WeftWriter

#: Its name, where its files are, a save and a load.
Way = Tuple[str, pathlib.Path, Callable[[], Any], Callable[[], Any]]
TENSOR = 64 << 20
THREADS = len(os.sched_getaffinity(0))
STORE = """
import sys
from libweft.checkpoint import Store
with Store(sys.argv[1], fabric=sys.argv[2], rails="lo" if sys.argv[2] == "tcp" else None) as store:
    sys.stdout.buffer.write(store.manifest() + b"\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def timed(call: Callable[[], Any]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def each_file(folder: pathlib.Path, do: Callable[[int], Any]) -> None:
    for path in [folder, *folder.rglob("*")]:
        file = os.open(path, os.O_RDONLY)
        do(file)
        os.close(file)


def cold(folder: pathlib.Path) -> None:
    each_file(folder, os.fsync)
    each_file(folder, lambda file: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED))


def by_safetensors(paths: List[str], target: Dict[str, Any]) -> None:
    from safetensors import safe_open
    for path in paths:
        with safe_open(path, "pt") as file:
            for name in target.keys() & set(file.keys()):
                target[name].view(-1).copy_(file.get_tensor(name).view(-1))


def by_runai(paths: List[str], target: Dict[str, Any]) -> None:
    from runai_model_streamer import SafetensorsStreamer
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(paths, owned=False, tensor_names=target.keys())
        for name, tensor in streamer.get_tensors():
            target[name].view(-1).copy_(tensor.view(-1))


LOADERS: Dict[str, Callable[[List[str], Dict[str, Any]], None]] = {
    name: load for name, load in (("safetensors", by_safetensors), ("runai_model_streamer", by_runai))
    if importlib.util.find_spec(name)}


def main() -> None:
    gigabytes, turns, fabrics = float(sys.argv[1]), int((sys.argv[2:] or ["3"])[0]), (sys.argv[3:] or ["host,tcp"])[0].split(",")
    count = max(int(gigabytes * 1e9) // TENSOR, 1)
    state = {f"layer.{i}": torch.randn(TENSOR // 4096, 1024) for i in range(count)}
    target = {name: torch.ones_like(tensor) for name, tensor in state.items()}
    times: Dict[str, List[float]] = {}
    step = ""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch, contextlib.ExitStack() as ends:
        files = pathlib.Path(scratch, "files")

        def own() -> None:
            dcp.save(state, storage_writer=dcp.FileSystemWriter(files, thread_count=THREADS, sync_files=True))
            each_file(files, os.fsync)

        ways: List[Way] = [("PyTorch", files, own, lambda: dcp.load(target, storage_reader=dcp.FileSystemReader(files)))]
        for fabric in fabrics:
            kept = pathlib.Path(scratch, fabric)
            store = subprocess.Popen([sys.executable, "-c", STORE, str(kept), fabric], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            ends.callback(store.wait)
            ends.callback(store.kill)
            assert store.stdout is not None
            writer = WeftWriter([store.stdout.readline()], fabric=fabric, rails="lo" if fabric == "tcp" else None)
            ends.callback(writer.close)
            reader = WeftReader(writer.checkpoints)
            ways.append((fabric, kept, lambda writer=writer: dcp.save(state, storage_writer=writer, checkpoint_id=step),  # type: ignore[misc]
                         lambda reader=reader: dcp.load(target, storage_reader=reader, checkpoint_id=step)))  # type: ignore[misc]
        for turn in range(turns + 1):  # the first is not counted
            step = str(turn)

            def cold_load(name: str, folder: pathlib.Path, load: Callable[[], Any]) -> None:
                cold(folder)
                for tensor in target.values():
                    tensor.fill_(turn)
                note(f"{name} load", timed(load))
                for key in state:
                    assert torch.equal(state[key], target[key]), (name, key)

            def note(what: str, seconds: float) -> None:
                print(f"{what} {seconds:.2f} s", file=sys.stderr, flush=True)
                times.setdefault(what, []).extend([seconds] * (turn > 0))

            for name, folder, save, load in ways:
                note(f"{name} save", timed(save))
                cold_load(name, folder, load)
                for loader, load_by in LOADERS.items() if name == fabrics[0] else ():
                    cold_load(loader, folder, lambda: load_by(sorted(map(str, folder.rglob("*.safetensors"))), target))
                shutil.rmtree(folder if name == "PyTorch" else folder / step)
    figures = pathlib.Path(__file__).resolve().parents[2] / "target/figures"
    figures.mkdir(parents=True, exist_ok=True)
    medians = {what: statistics.median(each) for what, each in times.items()}
    for figure, what in (("checkpoint_over_dcp", "save"), ("checkpoint_load_over_dcp", "load")):
        there = medians[f"PyTorch {what}"]
        for fabric in fabrics:
            here = medians[f"{fabric} {what}"]
            print(f"{figure:28}{there / here:.2f}   {what} of {count * TENSOR / 1e9:.2f} GB over {fabric}: {here:.2f} s, PyTorch's files {there:.2f} s")
        (figures / figure).write_text(f"{there / medians[f'{fabrics[0]} {what}']:.3f}\n")
    for loader in LOADERS:
        print(f"{loader:28}{medians[f'{loader} load'] / medians[f'{fabrics[0]} load']:.2f}   the same load by it")


if __name__ == "__main__":
    main()
