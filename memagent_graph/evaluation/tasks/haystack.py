"""Text that has nothing to do with the question, what is hidden in it, and words for it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from functools import cache
from hashlib import sha256
from itertools import chain, islice
from math import gcd
from string import ascii_lowercase
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from memagent_graph.errors import ConfigurationError, install_hint
from memagent_graph.evaluation.samples import Piece
from memagent_graph.text.chunks import next_chunk
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator

    from memagent_graph.text.source import Source

_SENTENCE_END = re.compile(r"[.!?。！？][\"”’」)]*\s+")
_PARAGRAPH = 120
"""Tokens of an essay's part, about."""


_WINDOW = 16 * 2**10
"""Code points of a text that are read at once."""
_LONGEST = 1000
"""Code points after which a sentence is cut that has no end."""
_TOGETHER = 64
"""Parts whose tokens are counted at once: an estimate of a short one is off by half a token."""


def fit(parts: Iterable[str], room: int, count: Callable[[str], int]) -> tuple[int, int]:
    """Return how many successive parts fit into a number of tokens, and the tokens left over.

    Args:
        parts: any number of parts of a text.
        room: the number of tokens.
        count: counts tokens.
    """
    fitting, parts = 0, iter(parts)
    while block := [*islice(parts, _TOGETHER)]:
        cost = count("".join(block))
        if cost > room:
            sizes = range(1, len(block) + 1)
            more = bisect_right(sizes, room, key=lambda size: count("".join(block[:size])))
            return fitting + more, room - count("".join(block[:more]))
        fitting, room = fitting + len(block), room - cost
    return fitting, room


def hide(parts: Iterable[str], needles: Iterable[tuple[int, Piece]], glue: str) -> Iterator[Piece]:
    """A document of parts with needles among them.

    Args:
        parts: lines or sentences.
        needles: pieces, each with the number of the part that it stands before; any that has no
            such part stands at the end.
        glue: text between two of all these.
    """
    waiting, between = deque(sorted(needles, key=lambda needle: needle[0])), ""
    for number, part in enumerate(chain(parts, [None])):
        while waiting and (part is None or waiting[0][0] <= number):
            if between:
                yield Piece(between)
            yield waiting.popleft()[1]
            between = glue
        if part is not None:
            yield Piece(between + part)
            between = glue


def sentences(source: Source) -> Iterator[str]:
    """The sentences of a text from its beginning, over and over, with single spaces.

    Raises:
        ConfigurationError: The text is blank.
    """
    while True:
        blank = True
        for text in _sentences(source):
            blank = False
            yield text
        if blank:
            raise ConfigurationError("There is no text among the essays.")


def _sentences(source: Source) -> Iterator[str]:
    rest = ""
    for start in range(0, source.length, _WINDOW):
        rest += source.read(start, _WINDOW)
        last = start + _WINDOW >= source.length
        ends = [match.end() for match in _SENTENCE_END.finditer(rest)]
        ends += [len(rest)] if last else []
        for begin, end in zip([0, *ends], ends, strict=False):
            yield from _short(rest[begin:end])
        rest = rest[ends[-1] :] if ends else rest
        if len(rest) > _WINDOW:
            end = rest.rfind(" ") + 1 or len(rest)
            yield from _short(rest[:end])
            rest = rest[end:]


def _short(text: str) -> Iterator[str]:
    """One sentence, or parts of something that has no sentences; none of what is blank."""
    text = " ".join(text.split())
    while len(text) > _LONGEST:
        cut = text.rfind(" ", 1, _LONGEST)
        cut = cut if cut > 0 else _LONGEST
        yield text[:cut]
        text = text[cut:].lstrip()
    if text:
        yield text


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
    with install_hint('For RULER\'s words: pip install "memagent-graph[eval]"'):
        from wonderwords import Defaults, RandomWord
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


def mix_words(rng: random.Random) -> Iterator[str]:
    """English words in no order, and when all have been, made-up ones; none twice."""
    known = vocabulary().words
    yield from rng.sample(known, len(known))
    english = frozenset(known)
    yield from (made for made in words(rng) if made not in english)


def draw_codes(rng: random.Random) -> Iterator[str]:
    """Words of six letters in no order that a reader could know; none twice."""
    known = set()
    while True:
        made = "".join(rng.choices(ascii_lowercase, k=_CODED))
        if made not in known:
            known.add(made)
            yield made


def draw_number(rng: random.Random) -> str:
    """A number of seven digits."""
    return str(rng.randrange(1_000_000, 10_000_000))


def draw_uuid(rng: random.Random) -> str:
    """A UUID."""
    return str(UUID(int=rng.getrandbits(128), version=4))
