"""Idsets: sets of non-negative ids as compact text, `0-3,7` (RFC 22).

Reading is strict about form (decimal digits, no leading zeros, no empty elements, ascending ranges) and lenient about
order: `3,1,1` is read as {1, 3}, since people type such lists. What is written is always in ascending order.
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.errors import FormatError

ID_MAX = 2**32 - 1
"""The largest id that is read or written."""

COUNT_MAX = 2**22
"""The most ids that one text may stand for; a larger one is an error and not an out-of-memory."""


def parse(text: str) -> list[int]:
    """The ids of `text`, ascending and unique. `""` and `[]` are the empty set; brackets are optional (RFC 22).

    Raises FormatError for anything that is not an idset, for ids above ID_MAX and for more than COUNT_MAX ids.
    """
    body = text
    if text.startswith("["):
        if not text.endswith("]"):
            raise _bad(text, "the bracket is not closed")
        body = text[1:-1]
    if not body:
        return []
    ids: list[int] = []
    ascending = True
    for item in body.split(","):
        low_text, dash, high_text = item.partition("-")
        low = _number(low_text, text)
        high = _number(high_text, text) if dash else low
        if dash and high < low:
            raise _bad(text, f"the range {item} descends")
        if len(ids) + high - low >= COUNT_MAX:
            raise _bad(text, f"more than {COUNT_MAX} ids")
        if ids and low <= ids[-1]:
            ascending = False
        ids.extend(range(low, high + 1))
    return ids if ascending else sorted(set(ids))


def encode(ids: Iterable[int], brackets: bool = False) -> str:
    """The RFC 22 text of `ids`, in any order and with repeats: `0-3,7`.

    With `brackets`, more than one id is written as `[0-3,7]` and one id stays bare, as Flux prints ranks.
    Raises FormatError for an id below 0 or above ID_MAX.
    """
    ordered = sorted(set(ids))
    if not ordered:
        return ""
    if len(ordered) == 1 and 0 <= ordered[0] <= ID_MAX:
        return str(ordered[0])
    if ordered[0] < 0 or ordered[-1] > ID_MAX:
        raise FormatError(f"an id of an idset is 0 to {ID_MAX}")
    text = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges(ordered))
    return f"[{text}]" if brackets and len(ordered) > 1 else text


def ranges(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of consecutive ids as (first, last), in the order given: [4, 5, 5, 1] is [(4, 5), (5, 5), (1, 1)]."""
    runs: list[tuple[int, int]] = []
    first = last = -2
    for one in ids:
        if one == last + 1 and first >= 0:
            last = one
            continue
        if first >= 0:
            runs.append((first, last))
        first = last = one
    if first >= 0:
        runs.append((first, last))
    return runs


def _number(digits: str, text: str) -> int:
    if not (digits.isascii() and digits.isdigit()):
        raise _bad(text, f'"{digits[:40]}" is not a number' if digits else "an id is missing")
    if len(digits) > 1 and digits[0] == "0":
        raise _bad(text, f"{digits[:40]} has a leading zero")
    if len(digits) > 10 or int(digits) > ID_MAX:
        raise _bad(text, f"{digits[:40]} is above {ID_MAX}")
    return int(digits)


def _bad(text: str, why: str) -> FormatError:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return FormatError(f'"{shown}" is not a valid idset: {why}')
