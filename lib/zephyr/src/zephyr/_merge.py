"""Joining two sorted sides by walking them side by side; what is held is one group of equal keys of the right side."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from zephyr._blocks import Block, rows_of
from zephyr._chain import ChainContext
from zephyr._keys import decode_key
from zephyr._ops import Key
from zephyr._shuffle.spill import SpilledList
from zephyr._shuffle.write import key_codes
from zephyr.errors import KeyOrderError
from zephyr.physical import MergeSides


def _groups(blocks: Iterable[Block], key: Key, side: str) -> Iterator[tuple[bytes, Iterator[tuple[bytes, Any]]]]:
    return groupby(_keyed(blocks, key, side), key=itemgetter(0))


def _keyed(blocks: Iterable[Block], key: Key, side: str) -> Iterator[tuple[bytes, Any]]:
    previous = b""
    position = 0
    for block in blocks:
        for code, item in zip(key_codes(block, key).to_pylist(), rows_of(block), strict=True):
            position += 1
            if code < previous:
                raise KeyOrderError(side, position, repr(decode_key(previous)), repr(decode_key(code)))
            previous = code
            yield code, item


def merge_sides(left: Iterable[Block], right: Iterable[Block], op: MergeSides, context: ChainContext) -> Iterator[Any]:
    """Pairs of the items of equal keys, in key order, left items outermost.

    Raises:
        KeyOrderError: a side is not sorted.
    """
    lefts, rights = _groups(left, op.left_key, "left"), _groups(right, op.right_key, "right")
    a, b = next(lefts, None), next(rights, None)
    combine = op.combiner or (lambda one, two: {**one, **two})
    keep_left, keep_right = op.how in ("left", "outer"), op.how in ("right", "outer")
    while a is not None or b is not None:
        # As in SQL, null equals nothing, not even null.
        alone = a is None or b is None or a[0] != b[0] or decode_key(a[0]) is None
        if not alone:
            assert a is not None and b is not None
            held = SpilledList(f"{context.folder}/group", context.memory_bytes // 4)
            for _, item in b[1]:
                held.append(item)
            for _, one in a[1]:
                yield from (combine(one, two) for two in held)
            held.close()
            a, b = next(lefts, None), next(rights, None)
        elif a is not None and (b is None or a[0] <= b[0]):
            if keep_left:
                yield from (combine(one, None) for _, one in a[1])
            a = next(lefts, None)
        else:
            assert b is not None
            if keep_right:
                yield from (combine(None, two) for _, two in b[1])
            b = next(rights, None)
