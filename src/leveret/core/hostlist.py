"""Hostlists: ordered lists of host names as compact text, `node[0-3],login` (RFC 29).

Order and repeats are part of the value: neither reading nor writing sorts or drops a host.
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.core.idset import ranges
from leveret.errors import FormatError

HOSTS_MAX = 2**18
"""The most hosts that one text may stand for; a larger one is an error and not an out-of-memory."""

NAME_LENGTH_MAX = 255
"""The longest name of a host, in characters."""

DIGITS_MAX = 15
"""The longest number that is compressed; a longer run of digits is taken as plain text."""


def parse(text: str) -> list[str]:
    """The hosts of `text`, in order, with repeats (RFC 29).

    An empty expression is an empty list, so `a,,b` is two hosts. One idlist an expression; leading zeros of its first
    element hold for the whole list: `n[00-2]` is n00, n01, n02. Raises FormatError for anything else, and for more than
    HOSTS_MAX hosts or a name above NAME_LENGTH_MAX characters.
    """
    if not text.isascii() or not text.isprintable() or " " in text:
        raise _bad(text, "only printable ASCII without spaces is allowed")
    hosts: list[str] = []
    start, length = 0, len(text)
    while start < length:
        comma, bracket = text.find(",", start), text.find("[", start)
        if comma < 0:
            comma = length
        if bracket < 0 or comma < bracket:
            name = text[start:comma]
            if "]" in name:
                raise _bad(text, "a bracket is not opened")
            if name:
                _check_name(name, text)
                hosts.append(name)
        else:
            close = text.find("]", bracket)
            if close < 0:
                raise _bad(text, "a bracket is not closed")
            comma = text.find(",", close)
            if comma < 0:
                comma = length
            _expand(text[start:bracket], text[bracket + 1 : close], text[close + 1 : comma], text, hosts)
        if len(hosts) > HOSTS_MAX:
            raise _bad(text, f"more than {HOSTS_MAX} hosts")
        start = comma + 1
    return hosts


def encode(hosts: Iterable[str]) -> str:
    """The RFC 29 text of `hosts`: neighbours that differ in their last number only share one bracket.

    Order, repeats and zero-padding are kept: `parse(encode(hosts)) == hosts`. Raises FormatError for a name that no
    hostlist can hold (empty, too long, with a space, comma, bracket or non-ASCII character).
    """
    parts: list[str] = []
    prefix = suffix = ""
    width = 0
    numbers: list[int] = []
    for host in hosts:
        if not host or not host.isascii() or not host.isprintable() or any(c in host for c in " ,[]"):
            raise FormatError(f'"{host[:60]}" is not a valid host name')
        if len(host) > NAME_LENGTH_MAX:
            raise FormatError(f'"{host[:60]}..." is not a valid host name: more than {NAME_LENGTH_MAX} characters')
        head, digits, tail = _split_number(host)
        padded = len(digits) > 1 and digits[0] == "0"
        if numbers and digits and head == prefix and tail == suffix:
            fits = digits == digits.lstrip("0").rjust(width, "0") if width else not padded
            if fits:
                numbers.append(int(digits))
                continue
        if numbers:
            parts.append(_render(prefix, numbers, width, suffix))
        if digits:
            prefix, suffix, width, numbers = head, tail, len(digits) if padded else 0, [int(digits)]
        else:
            parts.append(host)
            numbers = []
    if numbers:
        parts.append(_render(prefix, numbers, width, suffix))
    return ",".join(parts)


def _split_number(host: str) -> tuple[str, str, str]:
    """`host` around its last run of digits; no digits (or too many of them) gives ("", "", "")."""
    end = len(host)
    while end and not host[end - 1].isdigit():
        end -= 1
    start = end
    while start and host[start - 1].isdigit():
        start -= 1
    if start == end or end - start > DIGITS_MAX:
        return "", "", ""
    return host[:start], host[start:end], host[end:]


def _render(prefix: str, numbers: list[int], width: int, suffix: str) -> str:
    items = [
        f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}" for low, high in ranges(numbers)
    ]
    body = items[0] if len(numbers) == 1 else f"[{','.join(items)}]"
    return f"{prefix}{body}{suffix}"


def _expand(prefix: str, idlist: str, suffix: str, text: str, hosts: list[str]) -> None:
    if "[" in suffix or "]" in suffix or "[" in idlist or "]" in prefix:
        raise _bad(text, "an expression has one pair of brackets")
    first_width = -1
    for item in idlist.split(","):
        low_text, dash, high_text = item.partition("-")
        if not dash:
            high_text = low_text
        if not low_text.isdigit() or not high_text.isdigit():
            raise _bad(text, f'"{item[:40]}" is not an id or a range')
        if max(len(low_text), len(high_text)) > DIGITS_MAX:
            raise _bad(text, f"a number has more than {DIGITS_MAX} digits")
        if len(high_text) > 1 and high_text[0] == "0" and len(high_text) != len(low_text):
            raise _bad(text, f"the ends of {item} are padded differently")
        low, high = int(low_text), int(high_text)
        if high < low:
            raise _bad(text, f"the range {item} descends")
        if len(hosts) + high - low >= HOSTS_MAX:
            raise _bad(text, f"more than {HOSTS_MAX} hosts")
        width = len(low_text) if len(low_text) > 1 and low_text[0] == "0" else 0
        if first_width < 0:
            first_width = width
        width = max(width, first_width)
        _check_name(f"{prefix}{high:0{width}d}{suffix}", text)
        hosts.extend(f"{prefix}{number:0{width}d}{suffix}" for number in range(low, high + 1))


def _check_name(name: str, text: str) -> None:
    if len(name) > NAME_LENGTH_MAX:
        raise _bad(text, f"a name has more than {NAME_LENGTH_MAX} characters")


def _bad(text: str, why: str) -> FormatError:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return FormatError(f'"{shown}" is not a valid hostlist: {why}')
