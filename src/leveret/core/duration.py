"""Durations: Flux Standard Duration, `N[ms|s|m|h|d]` (RFC 23). All values are seconds as float."""

from __future__ import annotations

import math
import re

from leveret.errors import FormatError

UNITS_S: dict[str, float] = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds of each unit suffix (RFC 23, case sensitive)."""

_INVALID = "invalid Flux standard duration"

# The forms that C99 strtod reads (decimal, hexadecimal, infinity), with no white space and no NaN.
_FSD = (
    r"([+-]?)(?:(0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?)"
    r"|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|([iI][nN][fF](?:[iI][nN][iI][tT][yY])?))"
    r"(ms|s|m|h|d|)"
)


def parse(text: str | float | int) -> float:
    """Seconds of an RFC 23 duration; a bare number is seconds, `inf` and `infinity` are math.inf.

    Raises FormatError for anything else, negative numbers and NaN included.
    """
    if isinstance(text, str):
        number, unit = _read(text)
        seconds = number * UNITS_S[unit]
    elif isinstance(text, bool):
        raise FormatError(_INVALID)
    else:
        seconds = _as_float(text)
    if seconds < 0 or math.isnan(seconds):
        raise FormatError(_INVALID)
    return abs(seconds)


def parse_time_limit(text: str) -> float:
    """Seconds of a time limit as `-t` takes it: a bare number is minutes, anything else is RFC 23.

    0 and infinity both mean that there is no limit; they are returned as they came. Raises FormatError.
    """
    number, unit = _read(text)
    if number < 0:
        raise FormatError("duration must not be negative")
    return abs(number * UNITS_S[unit or "m"])


def encode(seconds: float) -> str:
    """The RFC 23 text of `seconds` in its largest unit, to four digits: 60 is `1m`, 90 is `1.5m`, 0 is `0s`.

    This is for people: it rounds. Infinity is `infinity`. Raises FormatError for negative numbers and NaN.
    """
    if math.isnan(seconds) or seconds < 0:
        raise FormatError(_INVALID)
    if math.isinf(seconds):
        return "infinity"
    if seconds == 0:
        return "0s"
    if seconds < 0.0005:
        return f"{seconds * 1000:.4g}ms"
    if seconds < 1:
        return f"{round(seconds, 3):.4g}s"
    # The unit is chosen after rounding, so that 59.9999 is `1m` and not `60s`.
    for unit, limit in (("s", 60.0), ("m", 60.0), ("h", 24.0)):
        value = seconds / UNITS_S[unit]
        if float(f"{value:.4g}") < limit:
            return f"{value:.4g}{unit}"
    days = seconds / UNITS_S["d"]
    return f"{days:.4g}d" if days < 1000 else f"{days:.0f}d"


def _read(text: str) -> tuple[float, str]:
    """Number and unit of RFC 23 text; the number may carry a minus sign, which no caller keeps."""
    match = re.fullmatch(_FSD, text) if text.isascii() and len(text) <= 64 else None
    if match is None:
        raise FormatError(_INVALID)
    sign, hexadecimal, decimal, infinite, unit = match.groups()
    try:
        number = float.fromhex(hexadecimal) if hexadecimal else float(decimal or infinite)
    except OverflowError:
        raise FormatError(_INVALID)
    if math.isinf(number * UNITS_S["d"]) and not infinite:
        raise FormatError(_INVALID)
    return (-number if sign == "-" else number), unit


def _as_float(number: float | int) -> float:
    try:
        return float(number)
    except OverflowError:
        raise FormatError(_INVALID)
