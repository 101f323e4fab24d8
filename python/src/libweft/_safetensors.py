"""Files of safetensors: a length, a JSON header, and the tensors' bytes one behind the other."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

#: The longest header.
HEADER_MAX = 100_000_000


class Tensor(NamedTuple):
    """A tensor of a file; its bytes begin and end so far behind the header."""

    dtype: str
    shape: Tuple[int, ...]
    begin: int
    end: int

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1


def header_of(path: str) -> bytes:
    """What precedes the tensors' bytes."""
    with open(path, "rb") as file:
        first = file.read(8)
        length = int.from_bytes(first, "little")
        text = file.read(min(length, HEADER_MAX))
    if len(first) < 8 or len(text) < length:
        raise ValueError(f"{path} is no safetensors file: its header is cut off")
    return first + text


def parsed(path: str, header: bytes) -> Tuple[Dict[str, Tensor], Dict[str, str]]:
    """The tensors that a header names, in its order, and its metadata."""
    try:
        said = json.loads(header[8:])
        metadata: Dict[str, str] = dict(said.pop("__metadata__", None) or {})
        tensors = {name: Tensor(str(t["dtype"]), tuple(map(int, t["shape"])), *map(int, t["data_offsets"]))
                   for name, t in said.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} is no safetensors file: {error!r}") from None
    for name, tensor in tensors.items():
        if not 0 <= tensor.begin <= tensor.end:
            raise ValueError(f"{path}: {name} has bytes {tensor.begin} to {tensor.end}")
    return tensors, metadata


def placed(wanted: Iterable[Tuple[str, str, Tuple[int, ...], int]]) -> Dict[str, Tensor]:
    """Tensors one behind the other: name, dtype, shape, bytes."""
    at, tensors = 0, {}
    for name, dtype, shape, length in wanted:
        tensors[name] = Tensor(dtype, tuple(shape), at, at + length)
        at += length
    return tensors


def header_for(tensors: Dict[str, Tensor], metadata: Optional[Dict[str, str]] = None, align: int = 8) -> bytes:
    """A header, padded so that the tensors' bytes begin at a multiple of `align`."""
    said: Dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    said.update((name, {"dtype": t.dtype, "shape": t.shape, "data_offsets": (t.begin, t.end)}) for name, t in tensors.items())
    text = json.dumps(said, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % align)
    return len(text).to_bytes(8, "little") + text


def size_of(tensors: Dict[str, Tensor]) -> int:
    """The bytes behind the header."""
    return max((t.end for t in tensors.values()), default=0)


#: The dtypes of the format, and the bits of an element of each.
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64, "F16": 16, "BF16": 16, "F32": 32,
    "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6,
    "F4": 4,
}


def row_of(name: str, dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a row of a tensor. Raises ValueError where a row has none that are whole."""
    if dtype not in BITS:
        raise ValueError(f"{name}: {dtype!r} is no dtype of safetensors, which are {', '.join(BITS)}")
    bits = BITS[dtype] * math.prod(shape[1:])
    if bits % 8:
        raise ValueError(f"{name}: a row of {dtype} {tuple(shape)} has {bits} bits, which are no whole bytes")
    return bits // 8


#: How numpy and torch call what the format calls so; complex and the smallest floats are named by later versions of it.
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}


def dtype_of(name: str, buffer: Any) -> Optional[str]:
    """Of a numpy array or a torch tensor; anything else is bytes, and has none."""
    kind = getattr(buffer, "dtype", None)
    if kind is None:
        return None
    word = str(kind).rpartition(".")[2]
    if word not in _DTYPES or getattr(kind, "byteorder", "=") == ">":
        raise ValueError(f"{name}: safetensors has no dtype {kind}")
    return _DTYPES[word]


def dtype_and_shape(name: str, buffer: Any, length: int) -> Tuple[str, Tuple[int, ...]]:
    dtype = dtype_of(name, buffer)
    return ("U8", (length,)) if dtype is None else (dtype, tuple(map(int, buffer.shape)))


def pieces(tensors: Dict[str, Tensor], piece: int) -> List[Tuple[int, int]]:
    """The places and lengths in which checksums are kept: tensors in the order of their bytes, each cut by itself."""
    return [(at, min(piece, t.end - at)) for t in sorted(tensors.values(), key=lambda t: (t.begin, t.end))
            for at in range(t.begin, t.end, piece)]
