"""Whether a text tells what a message says, in its own words or in others."""

from __future__ import annotations

from functools import lru_cache

from memagent_graph.readers.statements import statements
from memagent_graph.text.terms import telling_terms

_LEAST = 6
"""Terms of a gist: a sentence with fewer is taken with as many neighbours, at most."""
_ROOM = 12
"""Terms of a place: two sentences with fewer take in the next, up to as many sentences."""
_ASKED = 2
"""Weight of a word that is a number, or in the question or its answer."""
_SHARE = 0.6
"""Least share of a gist's weight in one place for it to count as told.

On LoCoMo's notes of its sessions (888 pairs of a message and a question): of messages that a note
rests on 69% are told, of messages of other sessions 3%, and of the same messages by the notes that
do not rest on them 7%; another conversation, whole, tells 3%. Quotes are always told. At 0.5 these
are 81%, 10%, 15% and 11%; at 0.6 with all words alike 53%, 1%, 4% and 4%.
"""


def told(message: str, question_and_answer: str, context: str) -> bool:
    """Whether the context tells what of the message bears on the question.

    That is the sentence with the most words of question and answer; it is told where two
    sentences or lines in a row have most of its words, names and numbers, by their stems. It
    takes time linear in the texts' length.

    Args:
        message: the message that the answer rests on.
        question_and_answer: question and answer, whose words to look for in it.
        context: text that an answer was written from.
    """
    about = frozenset(telling_terms(question_and_answer))
    gist = _gist(message, about)
    weights = {term: _ASKED if term in about or term[0].isdigit() else 1 for term in gist}
    least = _SHARE * sum(weights.values())
    shares = (sum(weights[term] for term in gist & place) for place in _places(context))
    return bool(gist) and any(share >= least for share in shares)


def _gist(message: str, about: frozenset[str]) -> frozenset[str]:
    """Terms of the sentence that is most about it, and of neighbours while they are too few."""
    sentences = _sentences(message)
    if not sentences:
        return frozenset()
    worth = [(len(terms & about), len(terms)) for terms in sentences]
    first = last = max(range(len(sentences)), key=worth.__getitem__)
    gist = sentences[first]
    widest = min(len(sentences), 1 + _LEAST)
    while len(gist) < _LEAST and last - first + 1 < widest:
        before = worth[first - 1] if first > 0 else (-1, -1)
        after = worth[last + 1] if last < len(sentences) - 1 else (-1, -1)
        if before > after:
            first -= 1
        else:
            last += 1
        gist |= sentences[first] | sentences[last]
    return gist


@lru_cache(maxsize=1)
def _places(context: str) -> list[frozenset[str]]:
    """Terms of each two sentences or lines in a row, and of more where these are short."""
    sentences = _sentences(context)
    places = []
    for first, sentence in enumerate(sentences):
        place = sentence
        for following in sentences[first + 1 : first + _ROOM]:
            place |= following
            if len(place) >= _ROOM:
                break
        places.append(place)
    return places


def _sentences(text: str) -> list[frozenset[str]]:
    """Terms of each sentence or line that has any."""
    found = (frozenset(telling_terms(statement.text)) for statement in statements(text))
    return [terms for terms in found if terms]
