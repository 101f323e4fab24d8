"""Files of weights, served and pulled: those that do not come out byte for byte.

    python3 weights_roundtrip.py     prints weights_roundtrip_failed, and leaves it in target/figures
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Sequence, Tuple

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1}
SHAPES: List[Tuple[int, ...]] = [(), (0,), (1,), (7,), (0, 4), (4, 0), (3, 5), (2, 3, 4), (1, 1, 1), (1000, 33)]


def made(tensors: Sequence[Tuple[str, str, Tuple[int, ...]]], metadata: Any = None, shuffled: bool = False,
         pad: int = 0, last: bool = False) -> bytes:
    """A safetensors file; `shuffled`: its header has another order than its bytes."""
    header: Dict[str, Any] = {} if metadata is None or last else {"__metadata__": metadata}
    at, places = 0, []
    for name, dtype, shape in tensors:
        length = SIZES[dtype]
        for dimension in shape:
            length *= dimension
        places.append((name, {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + length]}))
        at += length
    if shuffled:
        random.Random(1).shuffle(places)
    header.update(places)
    if metadata is not None and last:
        header["__metadata__"] = metadata
    text = json.dumps(header, separators=(",", ":") if pad else None).encode() + b" " * pad
    return len(text).to_bytes(8, "little") + text + os.urandom(at)


def files() -> List[bytes]:
    one = [made([("w", dtype, (5, 3))]) for dtype in SIZES]
    shapes = [made([("w", "F32", shape)]) for shape in SHAPES]
    mixed = [(f"t{i}", dtype, SHAPES[i % len(SHAPES)]) for i, dtype in enumerate(list(SIZES) * 2)]
    many = [made(mixed, metadata, shuffled, pad, last) for metadata in (None, {}, {"format": "pt", "\u00e4": "\u4e2d"})
            for shuffled in (False, True) for pad, last in ((0, False), (8, False), (1, True))]
    empty = [made([]), made([], {"format": "pt"}), made([("a", "F32", (0,)), ("b", "U8", (0, 9))])]
    return one + shapes + many + empty


def failed(contents: Sequence[bytes]) -> List[int]:
    """Which of them differ from what was served."""
    command = [sys.executable, "-m", "libweft.weights"]
    # It finds what this process has found.
    settings: Any = {"text": True, "env": dict(os.environ, PYTHONPATH=os.pathsep.join(map(os.path.abspath, sys.path)))}
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate(contents):
            given, out = pathlib.Path(folder, "in"), pathlib.Path(folder, "out")
            given.write_bytes(content)
            server = subprocess.Popen([*command, "serve", "--listen", "127.0.0.1:0", str(given)], stdout=subprocess.PIPE, **settings)
            assert server.stdout is not None
            try:
                place = server.stdout.readline().split()[-1]
                # The first source refuses.
                subprocess.run([*command, "pull", "--from", "127.0.0.1:1", "--from", place, "--out", str(out), "--verify"],
                               check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=100, **settings)
                same = out.read_bytes() == content
            except (subprocess.SubprocessError, IndexError):
                same = False
            finally:
                server.kill()
                server.wait()
                server.stdout.close()
            if not same:
                bad.append(number)
    return bad


if __name__ == "__main__":
    value = len(failed(files()))
    figures = pathlib.Path(__file__).resolve().parents[2] / "target/figures"
    figures.mkdir(parents=True, exist_ok=True)
    print(f"{'weights_roundtrip_failed':28}{value}")
    (figures / "weights_roundtrip_failed").write_text(f"{value}\n")
