"""The tasks by name, and the one that needs no labels: a sentence with a word of it masked.

Questions that a text asks about itself, as in MemTrain (arXiv 2606.03197): a team can train and
measure a reader on its own documents.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.questions import QuestionTask, RulerTask
from memagent_graph.evaluation.samples import Sample, Task, check_length, draw
from memagent_graph.evidence.statements import Piece, statements_of
from memagent_graph.text.chunks import Chunk
from memagent_graph.text.files import open_source
from memagent_graph.text.terms import specific_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memagent_graph.evidence.statements import Statement
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

_VERSION = 1
_BLANK = "____"
_ASKED = (
    "What stands in the place of ____ in this sentence of the document? Give these words alone."
)
_SHORTEST, _LONGEST = 40, 400
"""Lengths of a sentence that is asked about, in code points."""
_TERMS = 5
"""Fewest terms that must be left of it, to find it by."""
_NEAR = 20
"""Sentences before and after it in which no word of the answer may stand."""
_MOST = 3
"""Sentences of the whole text that may have the answer: what is common can be guessed."""
_JOINTS = {" ", "-", "–", "/", ", ", ". ", " of ", " de ", " van ", " von "}
"""What the words of one name or date may have between them."""
_ANSWER_TOKENS = 32
_WINDOW = 16 * 2**10
_WORD = 40
"""Code points within which a document is cut at a space."""


class _Masked(NamedTuple):
    question: str
    answer: str
    start: int
    end: int


class MaskedTask(Task):
    """Asks for what was masked in a sentence of a document, which holds the sentence as it is.

    The path is a file, folder or glob of any documents that can be read. The document is the text
    around the sentence, which is at a random place of it. A name, number or date is only asked for
    if at most three sentences of all have it, none of its words stands in the twenty sentences
    before and after, and no other sentence is the same but for such details: so neither what is
    near nor what is common gives the answer.
    """

    def __init__(self, path: str | Path) -> None:
        self.source = open_source(Path(path))
        self.name = f"masked_{Path(path).stem}"

    @property
    def identity(self) -> str:
        """Identity of the generator and the text."""
        return f"masked {_VERSION} {self.source.digest}"

    @property
    def texts(self) -> Sequence[str]:
        """Each sentence is asked about once."""
        return [masked.question for masked in self._questions]

    @cached_property
    def _questions(self) -> list[_Masked]:
        length = self.source.length
        whole = Chunk(self.source.read(0, length), 0, length, 0, self.source)
        found = _mask(statements_of(whole))
        if not found:
            message = (
                f"{self.source.name} has no sentence of {_SHORTEST} to {_LONGEST} characters with "
                "a name, number or date that no sentence near it has. Name more documents."
            )
            raise ConfigurationError(message)
        return found

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        masked = self._questions[draw(self.name, len(self._questions), index, seed)]
        gold = self.source.read(masked.start, masked.end - masked.start)
        needed = tokenizer.count(gold)
        check_length(self.name, length, needed)
        rng = random.Random(f"{self.name} {length} {index} {seed}")  # noqa: S311 - no secret
        start, end = self._around(masked, length - needed, rng.random(), tokenizer.count)

        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=masked.question,
            answers=(masked.answer,),
            metric="any",
            pieces=lambda: iter([self.source.read(start, end - start)]),
            answer_tokens=_ANSWER_TOKENS,
        )

    def _around(
        self, masked: _Masked, room: int, depth: float, count: Callable[[str], int]
    ) -> tuple[int, int]:
        """Return the span of a document with so many tokens beside the sentence."""
        before = int(room * depth)
        start, left = _reach(self.source, masked.start, -1, before, count)
        end, left = _reach(self.source, masked.end, 1, room - before + left, count)
        if end == self.source.length:
            start, left = _reach(self.source, start, -1, left, count)
        if (start, end) == (0, self.source.length) and left > (room + 99) // 100:
            message = (
                f"{self.source.name} has about {room - left:,} tokens, and documents of {room:,} "
                "were asked for: lower the length, or name more documents."
            )
            raise ConfigurationError(message)
        return start, end


def _reach(
    source: Source, at: int, step: int, room: int, count: Callable[[str], int]
) -> tuple[int, int]:
    """Return how far from an offset so many tokens reach, to a space, and the tokens left over.

    With a step of 1, what comes after it; with -1, what comes before.
    """
    while True:
        start = at if step > 0 else max(0, at - _WINDOW)
        text = source.read(start, _WINDOW if step > 0 else at - start)
        if not text:
            return at, room
        cost = count(text)
        if cost > room:
            break
        at, room = at + step * len(text), room - cost

    def near(size: int) -> str:
        return text[:size] if step > 0 else text[len(text) - size :]

    size = bisect_right(range(1, len(text) + 1), room, key=lambda size: count(near(size)))
    spaces = [place for place, sign in enumerate(near(size)[::step]) if sign.isspace()]
    if spaces and size - spaces[-1] < _WORD:
        size = spaces[-1] + 1
    return at + step * size, room - count(near(size))


def _mask(sentences: Sequence[Statement]) -> list[_Masked]:
    """Return a masked sentence for each sentence with a detail that nothing near it gives."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for number, sentence in enumerate(sentences):
        for term in specific_terms(sentence.text):
            places[term].append(number)
    details = [_details(sentence) for sentence in sentences]
    left = [_rest_terms(*pair) for pair in zip(sentences, details, strict=True)]
    alike = Counter(left)
    found = []
    for number, (sentence, spans, terms) in enumerate(zip(sentences, details, left, strict=True)):
        if alike[terms] > 1 or len(terms) < _TERMS:
            continue
        if not _SHORTEST <= len(sentence.text) <= _LONGEST:
            continue
        known = [span for span in spans if _is_rare(sentence.text, span, number, places)]
        if known:
            start, end = random.Random(sentence.text).choice(known)  # noqa: S311 - no secret
            shown = f"{sentence.text[:start]}{_BLANK}{sentence.text[end:]}"
            asked = f"{_ASKED}\n{shown}"
            found.append(_Masked(asked, sentence.text[start:end], sentence.start, sentence.end))
    return found


def _details(sentence: Statement) -> list[tuple[int, int]]:
    """Return the spans of names, numbers and dates, each whole; a first word alone is no name."""
    text = sentence.text
    spans: list[tuple[int, int]] = []
    sure: set[int] = set()
    for claim in sorted(Piece.of(text).claims, key=lambda claim: claim.start):
        if spans and text[spans[-1][1] : claim.start] in _JOINTS:
            spans[-1] = spans[-1][0], claim.end
        else:
            spans.append((claim.start, claim.end))
        if not claim.doubtful:
            sure.add(len(spans) - 1)
    return [span for place, span in enumerate(spans) if place in sure]


def _rest_terms(sentence: Statement, spans: Sequence[tuple[int, int]]) -> frozenset[str]:
    gaps = [(0, 0), *spans, (len(sentence.text), len(sentence.text))]
    parts = [sentence.text[before[1] : after[0]] for before, after in pairwise(gaps)]
    return frozenset(specific_terms(" ".join(parts)))


def _is_rare(text: str, span: tuple[int, int], number: int, places: dict[str, list[int]]) -> bool:
    """Whether few sentences have a detail, and none near it has any of its words."""
    terms = specific_terms(text[slice(*span)])
    rest = {*specific_terms(text[: span[0]]), *specific_terms(text[span[1] :])}
    if not terms or not rest.isdisjoint(terms):
        return False
    for term in terms:
        found = places[term]
        if bisect_right(found, number + _NEAR) - bisect_right(found, number - _NEAR - 1) > 1:
            return False
    common = set(places[terms[0]]).intersection(*(places[term] for term in terms[1:]))
    return len(common) <= _MOST


KINDS: dict[str, Callable[[str, Source | None], Task]] = {
    "qa:FILE": QuestionTask,
    "masked:FILE": lambda file, _: MaskedTask(file),
    "ruler:FILE": lambda file, _: RulerTask(file),
}
"""What makes a task of each kind, by its name; FILE stands for a path."""


def make_task(name: str, essays: Source | None = None) -> Task:
    """Make a task of its name, one of `KINDS` with a path for FILE; essays fill its documents.

    Raises:
        ConfigurationError: There is no such task.
    """
    kind, _, file = name.partition(":")
    found = KINDS.get(f"{kind}:FILE")
    if found is None or not file:
        message = f"There is no task {name!r}. Choose from: {', '.join(KINDS)}."
        raise ConfigurationError(message)
    return found(file, essays)
