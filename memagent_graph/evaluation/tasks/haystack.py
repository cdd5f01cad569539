"""Text that has nothing to do with the question, and words that no text has."""

from __future__ import annotations

import re
from math import gcd
from typing import TYPE_CHECKING
from uuid import UUID

from memagent_graph.errors import ConfigurationError
from memagent_graph.text.chunking import next_chunk
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from memagent_graph.text.source import Source

_NOISE = (
    "The kettle is warm. ",
    "A gate stands open. ",
    "The road turns left. ",
    "Nobody minds the rain. ",
    "Down it goes and up again.\n",
)
_SENTENCE_END = re.compile(r"[.!?。！？][\"”’」)]*\s+")
_PARAGRAPH = 120
"""Tokens of an essay's part, about."""


def noise(rng: random.Random) -> Iterator[str]:
    """The same few sentences, over and over."""
    first = rng.randrange(len(_NOISE))
    # Parts of some size: a tokenizer's estimate of one sentence is off by half a token.
    part = "".join((*_NOISE[first:], *_NOISE * 7, *_NOISE[:first]))
    while True:
        yield part


def essay(source: Source, rng: random.Random) -> Iterator[str]:
    """Parts of a text from somewhere in its middle on, over and over.

    Raises:
        ConfigurationError: The text is too short to cut.
    """
    counter = EstimatingTokenizer()
    position = rng.randrange(max(1, source.length // 2))
    # A part begins where another ended, not in the middle of a word.
    first = next_chunk(source, position, tokenizer=counter, chunk_tokens=_PARAGRAPH)
    position = first.end if first else source.length
    while True:
        chunk = next_chunk(source, position, tokenizer=counter, chunk_tokens=_PARAGRAPH)
        if chunk is None:
            if position == 0:
                raise ConfigurationError("There is no text among the essays.")
            position = 0
            yield "\n\n"
            continue
        ends = [match.end() for match in _SENTENCE_END.finditer(chunk.text)]
        text = chunk.text[: ends[-1]] if ends else chunk.text
        position += len(text)
        yield text


_ONSETS = (
    *("b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl", "l", "m", "n"),
    *("p", "pl", "qu", "r", "s", "sh", "sk", "st", "t", "tr", "v", "w", "z"),
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "oa")
_CODAS = ("b", "ck", "d", "g", "l", "m", "n", "nd", "p", "r", "rt", "s", "t", "x")
_SYLLABLES = [onset + vowel for onset in _ONSETS for vowel in _VOWELS]
WORDS = len(_SYLLABLES) ** 2 * len(_CODAS)
"""How many made-up words there are."""


def word(number: int) -> str:
    """The made-up word of a number; other numbers below `WORDS` have other words."""
    number, coda = divmod(number, len(_CODAS))
    first, second = divmod(number, len(_SYLLABLES))
    return _SYLLABLES[first] + _SYLLABLES[second] + _CODAS[coda]


def words(rng: random.Random) -> Iterator[str]:
    """Made-up words in no order, none twice until all have been."""
    step = rng.randrange(WORDS // 3, WORDS // 2)
    while gcd(step, WORDS) != 1:
        step += 1
    number = rng.randrange(WORDS)
    while True:
        number = (number + step) % WORDS
        yield word(number)


def number(rng: random.Random) -> str:
    """A number of seven digits."""
    return str(rng.randrange(1_000_000, 10_000_000))


def uuid(rng: random.Random) -> str:
    """A UUID."""
    return str(UUID(int=rng.getrandbits(128), version=4))
