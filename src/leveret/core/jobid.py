"""Job ids: FLUIDs, 64-bit unsigned integers with eight spellings (RFC 19).

A FLUID is `[40 bits of milliseconds | 14 bits of generator | 10 bits of sequence]`. The epoch of the milliseconds is
the caller's business. The tables of words and emoji are imported when they are first needed.
"""

from __future__ import annotations

from leveret.errors import FormatError

JOBID_MAX = 2**64 - 1
"""The largest job id."""

FORMS: tuple[str, ...] = ("dec", "hex", "dothex", "kvs", "words", "f58", "f58plain", "emoji")
"""The names that `encode` knows."""

GENERATOR_BITS = 14
SEQUENCE_BITS = 10
TIMESTAMP_BITS = 40

_F58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_HEX = frozenset("0123456789abcdefABCDEF")
_TEXT_LENGTH_MAX = 128


def parse(text: str | int) -> int:
    """The job id that `text` spells in any form of RFC 19, with white space around it ignored.

    Raises FormatError `"xyz" is not a valid jobid`, also for what does not fit 64 bits.
    """
    if isinstance(text, str):
        jobid = _decode(text.strip()) if len(text) <= _TEXT_LENGTH_MAX else -1
    else:
        jobid = -1 if isinstance(text, bool) else text
    if not 0 <= jobid <= JOBID_MAX:
        # A huge int has no decimal form that Python is willing to print.
        shown = text[:40] if isinstance(text, str) else text if text.bit_length() <= 256 else "number"
        raise FormatError(
            f'"{shown}" is not a valid jobid', hint="write it as decimal, 0x…, ƒ…, dothex, words or emoji"
        )
    return jobid


def encode(jobid: int, form: str = "f58", ascii: bool = False) -> str:
    """`jobid` in one of FORMS. `ascii` makes f58 begin with `f` in place of `ƒ`, as f58plain always does.

    Raises FormatError `Unknown to=…` for another form and for a number that is not a job id.
    """
    if not 0 <= jobid <= JOBID_MAX:
        raise FormatError(f'"{jobid}" is not a valid jobid')
    if form == "f58":
        return ("f" if ascii else "ƒ") + _to_base(jobid, _F58)
    if form == "f58plain":
        return "f" + _to_base(jobid, _F58)
    if form == "dec":
        return str(jobid)
    if form == "hex":
        return f"{jobid:#x}"
    if form in ("dothex", "kvs"):
        digits = f"{jobid:016x}"
        dotted = f"{digits[:4]}.{digits[4:8]}.{digits[8:12]}.{digits[12:]}"
        return dotted if form == "dothex" else f"job.{dotted}"
    if form == "words":
        return _to_words(jobid)
    if form == "emoji":
        from leveret.core.jobid_emoji import EMOJI

        return _to_base(jobid, EMOJI)
    raise FormatError(f"Unknown to={form}", hint=f"one of {', '.join(FORMS)}")


def next_fluid(last: int, now_ms: int, generator: int) -> int:
    """A new FLUID, greater than `last` (0 when there is none), for the time `now_ms` since the epoch (RFC 19).

    The clock may stand still or go back: the time of an id is then that of the last one, and a full sequence borrows
    the next millisecond. Raises FormatError when the generator or the time does not fit its bits.
    """
    if not 0 <= generator < 1 << GENERATOR_BITS:
        raise FormatError(f"a FLUID generator is 0 to {(1 << GENERATOR_BITS) - 1}")
    last_ms = fluid_timestamp_ms(last)
    at_ms = max(now_ms, last_ms)
    fluid = _fluid(at_ms, generator, 0)
    if at_ms == last_ms and fluid <= last:
        fits = fluid_generator(last) == generator and last & ((1 << SEQUENCE_BITS) - 1) != (1 << SEQUENCE_BITS) - 1
        fluid = last + 1 if fits else _fluid(at_ms + 1, generator, 0)
    if fluid > JOBID_MAX:
        raise FormatError(f"a FLUID timestamp has {TIMESTAMP_BITS} bits")
    return fluid


def fluid_timestamp_ms(jobid: int) -> int:
    """Milliseconds since the epoch of the instance at which `jobid` was made."""
    return jobid >> (GENERATOR_BITS + SEQUENCE_BITS)


def fluid_generator(jobid: int) -> int:
    """The generator (by default the broker rank) that made `jobid`."""
    return (jobid >> SEQUENCE_BITS) & ((1 << GENERATOR_BITS) - 1)


def _fluid(timestamp_ms: int, generator: int, sequence: int) -> int:
    return (timestamp_ms << (GENERATOR_BITS + SEQUENCE_BITS)) | (generator << SEQUENCE_BITS) | sequence


def _decode(text: str) -> int:
    """The number of `text`, by the decision list of RFC 19; -1 when it cannot be read."""
    if "." in text:
        return _from_dothex(text)
    if "-" in text:
        return _from_words(text)
    if text[:1] in ("ƒ", "f"):
        return _from_base(text[1:], _F58)
    if "\U0001f000" <= text[:1] <= "\U0001ffff":
        from leveret.core.jobid_emoji import EMOJI

        return _from_base(text, EMOJI)
    if text.startswith("0x"):
        digits = text[2:]
        return int(digits, 16) if digits and _HEX.issuperset(digits) else -1
    return int(text) if text.isascii() and text.isdigit() else -1


def _from_dothex(text: str) -> int:
    groups = text.removeprefix("job.").split(".")
    if len(groups) != 4 or not all(len(group) == 4 and _HEX.issuperset(group) for group in groups):
        return -1
    return int("".join(groups), 16)


def _to_base(number: int, digits: str) -> str:
    base = len(digits)
    text = digits[number % base]
    while number := number // base:
        text = digits[number % base] + text
    return text


def _from_base(text: str, digits: str) -> int:
    number = 0
    for char in text:
        value = digits.find(char)
        if value < 0:
            return -1
        number = number * len(digits) + value
    return number if text else -1


def _to_words(jobid: int) -> str:
    """Mnemonicode: each little-endian half of 32 bits is three words, the lowest first."""
    from leveret.core.jobid_words import BASE, WORDS

    halves = []
    for half in (jobid & 0xFFFFFFFF, jobid >> 32):
        halves.append(f"{WORDS[half % BASE]}-{WORDS[half // BASE % BASE]}-{WORDS[half // BASE // BASE]}")
    return "--".join(halves)


def _from_words(text: str) -> int:
    from leveret.core.jobid_words import BASE, WORDS

    words = [word for word in text.lower().split("-") if word]
    if len(words) != 6:
        return -1
    try:
        values = [WORDS.index(word, 0, BASE) for word in words]
    except ValueError:
        return -1
    low, high = (a + BASE * (b + BASE * c) for a, b, c in (values[:3], values[3:]))
    return low | high << 32 if max(low, high) < 1 << 32 else -1
