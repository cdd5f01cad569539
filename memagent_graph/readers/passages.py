"""Sentences that can be evidence, and the terms that compare them with notes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.readers.figures import simple_values
from memagent_graph.readers.statements import statements
from memagent_graph.text.terms import telling_terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memagent_graph.readers.figures import Figure


class Passage(NamedTuple):
    """A sentence, or an older note, that can be evidence.

    Attributes:
        text: the sentence, on one line.
        start: offset of its first code point in the text that was cut.
        end: one past its last.
        block: number of its paragraph.
        terms: stems, pairs of characters, and numbers as "=12", in order.
    """

    text: str
    start: int
    end: int
    block: int
    terms: Mapping[str, None]


def passages(text: str) -> Iterator[Passage]:
    """Cut a text into sentences that can be evidence."""
    block = last = 0
    for cut in statements(text):
        block += text.count("\n", last, cut.start) > 1
        last = cut.end
        yield Passage(cut.text, cut.start, cut.end, block, passage_terms(cut.text))


def passage_terms(text: str) -> dict[str, None]:
    """Return the terms of a text, including numbers of one word."""
    return dict.fromkeys(term for token in _TOKEN.findall(text) for term in _token_terms(token))


_TOKEN = regex.compile(r"\w++(?:[.,:'’]\w++)*+")


@lru_cache(1 << 16)
def _token_terms(token: str) -> tuple[str, ...]:
    found = telling_terms(token)
    values = simple_values(found, token)
    words = (term for term in found if not values or not simple_values([term], ""))
    return (*words, *values)


def note_terms(text: str, numbers: Sequence[Figure]) -> dict[str, None]:
    """Return the terms of a note; a number of several words is one term."""
    plain, last = [], 0
    for number in numbers:
        if number.spelled and " " in number.text:
            plain.append(text[last : number.start])
            last = number.end
    found = passage_terms(" ".join([*plain, text[last:]]))
    found.update(
        dict.fromkeys(f"={value}" for number in numbers for value in sorted(number.values))
    )
    return found
