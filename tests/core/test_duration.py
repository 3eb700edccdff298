"""Flux Standard Duration (RFC 23)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core import duration
from leveret.errors import FormatError

PROPERTY = settings(deadline=None)

GOOD = [
    ("0", 0), ("1", 1), ("1.5", 1.5), (".5", 0.5), ("5.", 5), ("1e3", 1000), ("1E-3s", 0.001), ("30s", 30),
    ("250ms", 0.25), ("5m", 300), ("1.5m", 90), ("2h", 7200), ("0.5d", 43200), ("1d", 86400), ("+3s", 3), ("-0", 0),
    ("inf", math.inf), ("infinity", math.inf), ("INFINITY", math.inf), ("infinitys", math.inf), ("0x10", 16),
    ("0x1p4s", 16), ("0x1d", 29),
]  # fmt: skip

BAD = [
    "", " ", "foo", "s", "m", "1 s", " 1", "1 ", "1\n", "1M", "1S", "1H", "1D", "1MS", "1us", "1w", "1y", "1m30s", "-1",
    "-5m", "-inf", "nan", "NaN", "1_0", "1,5", "0x", "1e", "1e400", "1e308d", "0x1p99999", "--1", "+-1", "١",
    "9" * 65, ".",
]  # fmt: skip


@pytest.mark.parametrize(("text", "seconds"), GOOD)
def test_reads(text: str, seconds: float) -> None:
    assert duration.parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", BAD)
def test_refuses(text: str) -> None:
    with pytest.raises(FormatError, match=r"^invalid Flux standard duration$"):
        duration.parse(text)


@pytest.mark.parametrize("number", [0, 7, 2.5, math.inf])
def test_a_number_is_seconds(number: float) -> None:
    assert duration.parse(number) == number


@pytest.mark.parametrize("number", [-1, -0.5, math.nan, -math.inf, True, 10**400])
def test_refuses_a_number(number: float) -> None:
    with pytest.raises(FormatError):
        duration.parse(number)


def test_zero_has_no_sign() -> None:
    assert math.copysign(1, duration.parse("-0")) == 1
    assert math.copysign(1, duration.parse_time_limit("-0")) == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("0.5", 30), ("0", 0), ("1e1", 600), ("5m", 300), ("30s", 30), ("0.5s", 0.5), ("1h", 3600),
     ("inf", math.inf), ("infinity", math.inf)],
)  # fmt: skip
def test_a_bare_time_limit_is_minutes(text: str, seconds: float) -> None:
    assert duration.parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", ["-1", "-5m", "-0.1", "-inf"])
def test_a_negative_time_limit_is_named(text: str) -> None:
    with pytest.raises(FormatError, match=r"^duration must not be negative$"):
        duration.parse_time_limit(text)


@pytest.mark.parametrize("text", ["foo", "", "1x", "nan", "1_0"])
def test_refuses_a_time_limit(text: str) -> None:
    with pytest.raises(FormatError, match=r"^invalid Flux standard duration$"):
        duration.parse_time_limit(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (0.0001, "0.1ms"), (0.02345, "0.023s"), (0.25, "0.25s"), (5, "5s"), (2.8584, "2.858s"),
        (15.6, "15.6s"), (16.914, "16.91s"), (59.9999, "1m"), (60, "1m"), (90, "1.5m"), (63.78, "1.063m"), (3600, "1h"),
        (3599.9999, "1h"), (5400, "1.5h"), (86399.9999, "1d"), (86400, "1d"), (129600, "1.5d"),
        (86400 * 36500, "36500d"), (math.inf, "infinity"),
    ],
)  # fmt: skip
def test_writes(seconds: float, text: str) -> None:
    assert duration.encode(seconds) == text


@pytest.mark.parametrize("seconds", [-1, math.nan, -math.inf])
def test_does_not_write_what_is_no_duration(seconds: float) -> None:
    with pytest.raises(FormatError):
        duration.encode(seconds)


@PROPERTY
@given(st.floats(0.01, 1e9) | st.integers(0, 10**9).map(float))
def test_what_is_written_is_read_back_to_four_digits(seconds: float) -> None:
    assert duration.parse(duration.encode(seconds)) == pytest.approx(seconds, rel=6e-4, abs=6e-4)


@PROPERTY
@given(st.floats(0, 1e12), st.sampled_from(list(duration.UNITS_S)))
def test_the_unit_multiplies(number: float, unit: str) -> None:
    assert duration.parse(f"{number!r}{unit}") == pytest.approx(number * duration.UNITS_S[unit])


@PROPERTY
@given(st.text(alphabet="0123456789.-+eExinfms hd", max_size=10))
def test_any_text_is_a_duration_or_a_format_error(text: str) -> None:
    try:
        seconds = duration.parse(text)
    except FormatError:
        return
    assert seconds >= 0
