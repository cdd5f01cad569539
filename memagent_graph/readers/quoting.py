"""Choose one or two statements of a memory to quote as the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import regex

from memagent_graph.readers.ranking import meanings, ranked, relevance
from memagent_graph.text.terms import content_terms, names

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from memagent_graph.readers.statements import Statement

_BY_SURNAME = 0.5
"""Weight of a match with only the last word of a name."""

# Pairs: what a question asks for, and what a statement needs to be able to answer it.
_EXPECTED = [
    (
        regex.compile(r"(?i)\bwhere\b|\b(?:what|which) (?:city|town|country|place)\b|哪里|在哪"),
        regex.compile(r"\b(?i:in|at|from|to|near|on|of)\s+(?:the\s+)?\p{Lu}|[在于]\p{Han}"),
    ),
    (
        regex.compile(r"(?i)\bwhen\b|\b(?:what|which) (?:year|date|day|month)\b|哪一?年|何时|时候"),
        regex.compile(r"\p{N}{3,}|\b\p{N}{1,2}\s\p{Lu}|\p{Lu}\p{Ll}+\s\p{N}{1,2}\b|\p{N}年"),
    ),
    (
        regex.compile(r"(?i)\bhow (?:many|much|old|long|far|tall|large|high|big)\b|多少|几"),
        regex.compile(r"\p{N}|[一二三四五六七八九十百千万亿]"),
    ),
    (
        regex.compile(r"(?i)\bwho(?:m|se)?\b|谁"),
        regex.compile(r"(?<!^)\p{Lu}\p{Ll}+"),
    ),
]


def best_two(question: str, statements: Sequence[Statement]) -> list[Statement]:
    """Return the best statement and, if it lacks a word of the question, a second one.

    The second is about somebody or something that the first names, or else the runner-up.
    """
    meant = meanings(statements)
    scores = relevance(question, statements, meant)
    order = [index for index in ranked(scores) if scores[index] > 0]
    if not order:
        return []
    first, *rest = order
    wanted = set(content_terms(question))
    left_open = wanted.difference(meant[first])
    if not (rest and left_open):
        return [statements[first]]
    leads = _leads(statements[first].text, wanted)
    links = {index: _link(leads, meant[index]) for index in rest}
    gains = {index: len(left_open.intersection(meant[index])) for index in rest}
    second = max(rest, key=lambda index: links[index] * gains[index])
    told = links[second] * gains[second]
    # A surname alone may be somebody else's: it must add more than the runner-up does.
    if not told or (links[second] < 1 and told < gains[rest[0]]):
        linked = (index for index in rest if links[index] == 1)
        direct = next((i for i in linked if _may_tell(question, statements[i].text)), None)
        further = _end_of_trail(question, first, statements, meant) if direct is None else None
        second = next((i for i in (direct, further) if i is not None), rest[0])
    return [statements[first], statements[second]]


def has_enough(question: str, statements: Sequence[Statement]) -> str | None:
    """Return the statement with all words of a question and the kind of answer it asks for."""
    quoted = best_two(question, statements)
    wanted = {*content_terms(question)}
    if not quoted or not wanted or not _may_tell(question, quoted[0].text):
        return None
    meant = meanings(statements)[statements.index(quoted[0])]
    return None if wanted.difference(meant) else quoted[0].text


def answers(question: str, statements: Sequence[Statement]) -> bool:
    """Whether the best statement covers all words of the question.

    A statement about somebody or something that it names may supply missing words.
    """
    meant = meanings(statements)
    scores = relevance(question, statements, meant)
    first = next((index for index in ranked(scores) if scores[index] > 0), None)
    if first is None:
        return False
    wanted = set(content_terms(question))
    left_open = wanted.difference(meant[first])
    leads = _leads(statements[first].text, wanted)
    return not left_open or any(
        left_open.issubset(said) and _link(leads, said) == 1 for said in meant
    )


def _leads(text: str, wanted: Collection[str]) -> list[list[str]]:
    """Names of several words in a text, as those of their terms that the question lacks."""
    return [
        lead
        for name in names(text)
        if len(lead := [term for term in content_terms(name) if term not in wanted]) > 1
    ]


def _end_of_trail(
    question: str, first: int, statements: Sequence[Statement], meant: Sequence[list[str]]
) -> int | None:
    """The best statement that is reached by following names from one statement to the next."""
    wanted, trail = set(content_terms(question)), [first]
    left_open = wanted.difference(meant[first])
    for at in trail:  # grows within the loop
        leads = _leads(statements[at].text, wanted)
        trail += [
            index
            for index, said in enumerate(meant)
            if index not in trail and _link(leads, said) == 1
        ]
    told = {index: len(left_open.intersection(meant[index])) for index in trail[1:]}
    telling = [i for i in told if told[i] or _may_tell(question, statements[i].text)]
    return max(reversed(telling), key=lambda index: told[index], default=None)


def _link(leads: Sequence[Sequence[str]], said: Collection[str]) -> float:
    """Return how surely a statement is about one of the leads: 1 if it has the whole name."""
    known = set(said)
    if any(known.issuperset(lead) for lead in leads):
        return 1
    return _BY_SURNAME if any(lead[-1] in known for lead in leads) else 0


def _may_tell(question: str, text: str) -> bool:
    """Whether a text has the kind of answer that the question asks for: a place, a date."""
    return any(asks.search(question) and told.search(text) for asks, told in _EXPECTED)
