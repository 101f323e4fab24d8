"""Whether what ranks have saved of a tensor is all of it, once, or the same more than once."""

from __future__ import annotations

import functools
from typing import Dict, Mapping, Sequence, Tuple

from ._store import PIECE

#: The polynomial of the CRC-32, and one, with the highest power in the lowest bit.
POLYNOMIAL, ONE = 0xEDB88320, 1 << 31


def _times(left: int, right: int) -> int:
    product = 0
    while left:
        if left & ONE:
            product ^= right
        left = left << 1 & 0xFFFFFFFF
        right = right >> 1 ^ POLYNOMIAL * (right & 1)
    return product


@functools.lru_cache()
def _power(length: int) -> int:
    """What that many bytes behind others multiply their CRC-32 by."""
    result, square = ONE, ONE >> 8
    while length:
        if length & 1:
            result = _times(result, square)
        square, length = _times(square, square), length >> 1
    return result


def joined(before: int, length: int, sums: Sequence[int]) -> int:
    """The CRC-32 of bytes whose CRC-32 is `before`, and of `length` more, whose pieces have these."""
    for at, sum_ in zip(range(0, length, PIECE), sums):
        before = _times(_power(min(PIECE, length - at)), before) ^ sum_
    return before


def check(name: str, rows: int, row: int, ranges: Mapping[Tuple[int, int], Sequence[int]]) -> None:
    """Raises ValueError unless these ranges, none of which is empty, make up all rows. What is there more than once must have the
    same bytes; it may be cut in another way, as `spread` does by what else a rank has."""
    # Of each row at which a range begins or ends, the CRC-32 of all bytes before it.
    before: Dict[int, int] = {0: 0}
    reached = 0
    for (begin, end), sums in sorted(ranges.items()):
        if begin > reached:
            break
        if begin not in before:
            raise ValueError(f"rows {begin} to {min(end, reached)} of {name} were saved twice, in ranges that differ")
        sum_ = joined(before[begin], (end - begin) * row, sums)
        if before.setdefault(end, sum_) != sum_:
            raise ValueError(f"{name} was saved twice, with other bytes before row {end}")
        reached = max(reached, end)
    if reached < rows:
        end = min((begin for begin, _ in ranges if begin > reached), default=rows)
        raise ValueError(f"no rank has saved rows {reached} to {end} of {name}")
    for loose in before.keys() - {begin for begin, _ in ranges} - {rows}:
        raise ValueError(f"rows before and behind row {loose} of {name} were saved twice, in ranges that differ")
