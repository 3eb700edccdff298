"""Job ids (RFC 19)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core import jobid
from leveret.core.jobid_emoji import EMOJI
from leveret.core.jobid_words import BASE, WORDS
from leveret.errors import FormatError

PROPERTY = settings(deadline=None)
ANY_ID = st.integers(0, 2**64 - 1) | st.integers(0, 100) | st.integers(2**64 - 100, 2**64 - 1)

# Measured on Flux, and the examples of RFC 19.
SPELLINGS = {
    123456789: {
        "dec": "123456789", "hex": "0x75bcd15", "dothex": "0000.0000.075b.cd15", "kvs": "job.0000.0000.075b.cd15",
        "words": "gossip-ivory-artist--academy-academy-academy", "f58": "ƒBukQL", "f58plain": "fBukQL",
        "emoji": "🎰💗📣",
    },
    6731191091817518: {
        "dec": "6731191091817518", "hex": "0x17e9fb8df16c2e", "dothex": "0017.e9fb.8df1.6c2e",
        "words": "reform-remote-galileo--heart-package-academy", "f58": "ƒuZZybuNNy",
    },
    0xEDAF97D000000: {
        "hex": "0xedaf97d000000", "dothex": "000e.daf9.7d00.0000", "words": "random-idea-yoyo--sugar-printer-academy",
        "f58": "ƒZemgA8Bzf",
    },
    0x75BD0FE: {"f58plain": "fBukhb"},
    0: {"dec": "0", "f58": "ƒ1", "emoji": "😃"},
    1: {"dec": "1", "f58": "ƒ2", "emoji": "😄"},
    2**64 - 1: {"dec": "18446744073709551615", "kvs": "job.ffff.ffff.ffff.ffff"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("number", "form", "text"),
    [(number, form, text) for number, row in SPELLINGS.items() for form, text in row.items()],
)
def test_spells_as_flux_does(number: int, form: str, text: str) -> None:
    assert jobid.encode(number, form) == text
    assert jobid.parse(text) == number


@pytest.mark.parametrize("text", ["🚹💂🙌😳💱🏃", "😄😹🎇📥🏧🙉🔞", "🚹💂🈳💰🎩🏃", "ƒ278oEf7zGf"])
def test_reads_the_other_examples_of_the_rfc(text: str) -> None:
    # They are ids of generator 0, first in their millisecond.
    assert jobid.parse(text) % 2**24 == 0
    assert text in {jobid.encode(jobid.parse(text), form) for form in ("emoji", "f58")}


def test_tables_have_the_size_of_their_base() -> None:
    assert len(set(EMOJI)) == len(EMOJI) == 576
    assert all(char.encode().startswith(b"\xf0\x9f") for char in EMOJI)
    assert len(set(WORDS)) == len(WORDS) == BASE + 7
    assert BASE**3 >= 2**32


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("  42\n", 42), ("007", 7), ("0xFF", 255), ("\tƒ2 ", 1), ("ABCD.0000.0000.0001", 0xABCD000000000001),
        ("Gossip-Ivory-Artist--Academy-Academy-Academy", 123456789), (" 😄", 1), (17, 17), (2**64 - 1, 2**64 - 1),
    ],
)  # fmt: skip
def test_reads_variants(text: str | int, number: int) -> None:
    assert jobid.parse(text) == number


BAD = [
    "", " ", "notanid", "xyz", "-1", "+1", "1_0", "1 2", "1.5", "0x", "0X1", "0xg", "0x-1", "0x1_0", "f", "ƒ", "f0",
    "fO", "ƒI",
    "fl", "١٢", "²", "18446744073709551616", "0x10000000000000000", "job.", "job.0.0.0.1", "0000.0000.075b",
    "0000.0000.075b.cd15.0000", "job.0000.0000.075b.cd1g", "0000.0000.075b.+d15", "academy", "academy-academy-academy",
    "academy-academy-academy--academy-academy-nosuch", "academy-academy-ego--academy-academy-academy",
    "academy-academy-amen--academy-academy-academy", "academy-academy-academy--academy-academy-academy-academy",
    "🍌x", "🤖", "🙏" * 8, "f" + "z" * 12, "1" * 5000, -1, 2**64, True, 10**5000, -(10**5000),
]  # fmt: skip


@pytest.mark.parametrize("text", BAD, ids=lambda text: "" if isinstance(text, int) else ascii(text[:20]))
def test_refuses(text: str | int) -> None:
    with pytest.raises(FormatError, match="is not a valid jobid") as caught:
        jobid.parse(text)
    assert len(caught.value.message) < 120


def test_names_what_it_refuses() -> None:
    with pytest.raises(FormatError, match=r'^"notajob" is not a valid jobid$'):
        jobid.parse("notajob")


def test_ascii_and_unknown_forms() -> None:
    assert jobid.encode(123456789, ascii=True) == "fBukQL"
    assert jobid.encode(123456789) == "ƒBukQL"
    with pytest.raises(FormatError, match=r"^Unknown to=foo$"):
        jobid.encode(1, "foo")
    for number in (-1, 2**64):
        with pytest.raises(FormatError):
            jobid.encode(number)


@PROPERTY
@given(ANY_ID, st.sampled_from(jobid.FORMS), st.booleans())
def test_every_form_is_read_back(number: int, form: str, ascii_only: bool) -> None:
    text = jobid.encode(number, form, ascii_only)
    assert jobid.parse(text) == number
    assert jobid.parse(f"  {text}\n") == number


@PROPERTY
@given(st.text(alphabet="0123456789abcdefxƒ.-😃🎰", max_size=20))
def test_any_text_is_a_jobid_or_a_format_error(text: str) -> None:
    try:
        number = jobid.parse(text)
    except FormatError:
        return
    assert 0 <= number < 2**64


# Few times and generators, so that they often meet.
STEPS = st.lists(
    st.tuples(st.integers(0, 5) | st.integers(0, 2**40 - 100), st.integers(0, 2) | st.just(2**14 - 1)), max_size=60
)


@PROPERTY
@given(STEPS)
def test_fluids_increase_whatever_the_clock_does(steps: list[tuple[int, int]]) -> None:
    last = 0
    for now_ms, generator in steps:
        fluid = jobid.next_fluid(last, now_ms, generator)
        assert fluid > last
        assert jobid.fluid_generator(fluid) == generator
        assert jobid.fluid_timestamp_ms(fluid) >= now_ms
        # No more than the one millisecond that had to be borrowed.
        assert jobid.fluid_timestamp_ms(fluid) <= max(now_ms, jobid.fluid_timestamp_ms(last) + 1)
        last = fluid


def test_a_full_millisecond_borrows_the_next() -> None:
    fluids = []
    last = 0
    for _ in range(1030):
        last = jobid.next_fluid(last, 7, 3)
        fluids.append(last)
    assert [jobid.fluid_timestamp_ms(one) for one in fluids] == [7] * 1024 + [8] * 6
    assert {jobid.fluid_generator(one) for one in fluids} == {3}
    assert fluids == sorted(set(fluids))


@pytest.mark.parametrize(
    ("last", "now_ms", "generator"), [(0, 0, -1), (0, 0, 2**14), (0, 2**40, 0), (2**64 - 1, 0, 2**14 - 1)]
)
def test_a_fluid_that_does_not_fit_is_refused(last: int, now_ms: int, generator: int) -> None:
    with pytest.raises(FormatError):
        jobid.next_fluid(last, now_ms, generator)
