"""Mutated program text, and whether reading it stays within the time and the errors that a user may meet."""
from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from support.fuzz.programs import candidate
from tcjit.errors import TCError
from tcjit.grammar.front import read

LIMIT = 5.0  # seconds of the processor for one text
TOKENS = """def where in exists min max true false bool uint8 int8 int32 int64 uint64 half bfloat16 float double ( ) { } , : ; -> = += +=!
*= *=! min= min=! max= max=! ? || && > < >= <= == != + - * / % ! # . 0 1 2 3.5 1e9 1e999 2147483648 99999999999999999999 0x10 i j k X1 Y1 N
infinity() exp relu nextafter pow(2, 0.5) X1(i) \u00e9 \x00 "s" ' @ $ \\ [ ] -1 i/0 i%0 (((((( ))))))""".split()


def mutated(rng: random.Random) -> str:
    """A random program with a few characters or tokens dropped, doubled, swapped or replaced."""
    text = candidate(rng).text
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        text = rng.choice((_characters, _tokens, _tokens, _lines))(text, rng)
    return text


def _characters(text: str, rng: random.Random) -> str:
    a = rng.randrange(len(text) + 1)
    b = min(len(text), a + rng.randrange(4))
    return text[:a] + rng.choice(("", text[a:b] * 2, chr(rng.randrange(32, 127)), chr(rng.randrange(0x250)))) + text[b:]


def _tokens(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    at, other = rng.randrange(len(words)), rng.randrange(len(words))
    roll = rng.random()
    if roll < 0.25:
        del words[at]
    elif roll < 0.5:
        words[at], words[other] = words[other], words[at]
    elif roll < 0.75:
        words[at] = rng.choice(TOKENS)
    else:
        words.insert(at, rng.choice(TOKENS))
    return " ".join(words)


def _lines(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    roll = rng.random()
    if roll < 0.4:
        lines[at], lines[other] = lines[other], lines[at]
    elif roll < 0.7:
        lines.insert(at, lines[other])
    else:
        del lines[at]
    return "\n".join(lines)


class TooSlow(Exception):
    """A text took longer than ``LIMIT`` to read."""


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def reading_failure(text: str) -> str:
    """What is wrong with how ``text`` is read: empty if it is a program, or refused by a TCError that can be shown."""
    try:
        with _within(LIMIT):
            read(text)
    except TCError as error:
        return "" if str(error) else "an error without a message"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {error}"
    return ""
