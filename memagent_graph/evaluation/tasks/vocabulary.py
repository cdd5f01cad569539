"""Words, numbers and UUIDs: English words as RULER takes them, and words that no text has."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from math import gcd
from string import ascii_lowercase
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from memagent_graph.errors import MissingDependencyError

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator


class Vocabulary(NamedTuple):
    """English words, as RULER takes them from wonderwords, except for names and phrases.

    Attributes:
        adjectives: the adjectives, in order.
        nouns: the nouns, in order.
        words: these and verbs, each once, in order.
        digest: changes when any of them does.
    """

    adjectives: list[str]
    nouns: list[str]
    words: list[str]
    digest: str


@cache
def vocabulary() -> Vocabulary:
    """Load the words.

    Raises:
        MissingDependencyError: wonderwords is not installed.
    """
    try:
        from wonderwords import Defaults, RandomWord
    except ImportError as error:
        message = 'For RULER\'s words: pip install "memagent-graph[eval]"'
        raise MissingDependencyError(message) from error
    adjectives, nouns, verbs = (
        _plain(RandomWord(enhanced_prefixes=False, word=kind).filter())
        for kind in (Defaults.ADJECTIVES, Defaults.NOUNS, Defaults.VERBS)
    )
    known = sorted({*adjectives, *nouns, *verbs})
    digest = sha256("\n".join([*adjectives, "", *nouns, "", *verbs]).encode()).hexdigest()
    return Vocabulary(adjectives, nouns, known, digest[:16])


def _plain(entries: Iterable[str]) -> list[str]:
    """Words of small letters, with or without hyphens, each once and in order."""
    found = {entry.strip() for entry in entries}
    return sorted(one for one in found if all(map(_is_small, one.split("-"))))


def _is_small(part: str) -> bool:
    return part.isascii() and part.isalpha() and part.islower()


def pairs(rng: random.Random, taken: Iterable[str] = ()) -> Iterator[str]:
    """Keys of an adjective and a noun, such as "brief-goodnight"; none twice.

    Args:
        rng: chooses.
        taken: keys to leave out.
    """
    adjectives, nouns, *_ = vocabulary()
    known = set(taken)
    while True:
        pair = f"{rng.choice(adjectives)}-{rng.choice(nouns)}"
        if pair not in known:
            known.add(pair)
            yield pair


_CODED = 6
"""Letters of a coded word."""
_ONSETS = (
    *("b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl", "l", "m", "n"),
    *("p", "pl", "qu", "r", "s", "sh", "sk", "st", "t", "tr", "v", "w", "z"),
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "oa")
_CODAS = ("b", "ck", "d", "g", "l", "m", "n", "nd", "p", "r", "rt", "s", "t", "x")
_SYLLABLES = [onset + vowel for onset in _ONSETS for vowel in _VOWELS]
WORDS = len(_SYLLABLES) ** 2 * len(_CODAS)
"""Number of made-up words."""


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


def mixed(rng: random.Random) -> Iterator[str]:
    """English words in no order, and when all have been, made-up ones; none twice."""
    known = vocabulary().words
    yield from rng.sample(known, len(known))
    english = frozenset(known)
    yield from (made for made in words(rng) if made not in english)


def coded(rng: random.Random) -> Iterator[str]:
    """Words of six letters in no order that a reader could know; none twice."""
    known = set()
    while True:
        made = "".join(rng.choices(ascii_lowercase, k=_CODED))
        if made not in known:
            known.add(made)
            yield made


def number(rng: random.Random) -> str:
    """A number of seven digits."""
    return str(rng.randrange(1_000_000, 10_000_000))


def uuid(rng: random.Random) -> str:
    """A UUID."""
    return str(UUID(int=rng.getrandbits(128), version=4))
