"""Questions over paragraphs from files of HotpotQA, SQuAD or Natural Questions, to a length.

MemAgent (arXiv 2507.02259) is trained and measured on HotpotQA's questions, whose paragraphs
stand among others, as in RULER's task qa_2.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import (
    Sample,
    Task,
    check_length,
    draw,
    file_digest,
    fill_document,
)
from memagent_graph.text.chunks import next_chunk
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

_SENTENCE_END = re.compile(r"[.!?。！？][\"”’」)]*\s+")
_PARAGRAPH = 120
"""Tokens of an essay's part, about."""


@dataclass(frozen=True)
class Question:
    """A question that the paragraphs `gold` answer; `near` are the benchmark's own distractors.

    Any of the answers is enough. Questions with a common gold paragraph share the name `cluster`.
    """

    text: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]
    near: tuple[str, ...] = ()
    cluster: str = ""


def read_questions(file: Path) -> list[Question]:
    """All questions of a file, each once, in the file's order.

    A question that occurs twice gets the answers of both rows and the paragraphs of the first.
    """
    try:
        rows = read_rows(file)
        parse = next(parse for key, parse in _FORMATS.items() if key in rows[0])
        return _cluster(_join(question for row in rows for question in parse(row)))
    except (OSError, ValueError, LookupError, TypeError, StopIteration) as error:
        message = f"{file} is not a SQuAD, HotpotQA or Natural Questions file: {error!r}"
        raise ConfigurationError(message) from error


def same(question: str) -> str:
    """Normalize the spelling of a question: case and white space do not count."""
    return " ".join(question.casefold().split())


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The objects of a JSON or JSON Lines file."""
    text = file.read_text("utf-8-sig")
    try:
        found = json.loads(text)
    except ValueError:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    return found if isinstance(found, list) else [found]


def _squad(content: dict[str, Any]) -> Iterator[Question]:
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in asked["answers"]))
                if answers:
                    yield Question(asked["question"], answers, (paragraph["context"],))


def _hotpot(asked: dict[str, Any]) -> Iterator[Question]:
    wanted = {title for title, _ in asked["supporting_facts"]}
    titles = {f"{title}: {''.join(lines)}": title for title, lines in asked["context"]}
    gold = tuple(paragraph for paragraph, title in titles.items() if title in wanted)
    near = tuple(paragraph for paragraph, title in titles.items() if title not in wanted)
    if gold:
        yield Question(asked["question"], (asked["answer"],), gold, near)


def _natural(asked: dict[str, Any]) -> Iterator[Question]:
    if asked["answers"]:
        gold = ": ".join(filter(None, (asked["title"], asked["text"])))
        yield Question(asked["question"], tuple(asked["answers"]), (gold,))


_FORMATS = {"data": _squad, "supporting_facts": _hotpot, "text": _natural}
"""Parsers of formats, by a key that only this format has."""


def _join(questions: Iterable[Question]) -> list[Question]:
    """Each question once, with all its answers."""
    found: dict[str, Question] = {}
    for question in questions:
        first = found.setdefault(same(question.text), question)
        answers = tuple(dict.fromkeys(first.answers + question.answers))
        found[same(question.text)] = replace(first, answers=answers)
    return [*found.values()]


def _cluster(questions: list[Question]) -> list[Question]:
    """Name what questions share: a gold paragraph, also by way of a third question."""
    parents: dict[str, str] = {}

    def root(text: str) -> str:
        while (parent := parents.setdefault(text, text)) != text:
            text = parent
        return text

    for question in questions:
        for paragraph in question.gold:
            parents[root(paragraph)] = root(question.gold[0])
    roots = [root(question.gold[0]) for question in questions]
    sizes = Counter(roots)
    names = {text: f"paragraph {number}" for number, text in enumerate(sizes)}
    return [
        replace(question, cluster=names[text]) if sizes[text] > 1 else question
        for question, text in zip(questions, roots, strict=True)
    ]


VERSION = 2
"""Version of the generator; a change of the samples for equal arguments increases it."""
_ONLY = (
    "Answer the question based on the given documents. "
    "Only give me the answer and do not output any other words."
)
TEMPLATE = (
    f"{_ONLY}\n\nThe following are given documents.\n\n{{memory}}\n\n{_ONLY}\n\n"
    "Question: {question} Answer:"
)
"""RULER's prompt of questions over paragraphs."""
ANSWER_TOKENS = 32


class QuestionTask(Task):
    """Questions over the paragraphs that answer them, among others of the file and then essays.

    The last of the others is cut to the document's length. No paragraph occurs twice: if the file
    has too few, and there are no essays, it is an error.

    Files are in the format of SQuAD, HotpotQA (distractor), or Natural Questions with passages: a
    JSON object a line with question, answers, title and text.
    """

    def __init__(self, file: str | Path, essays: Source | None = None) -> None:
        self.file = Path(file)
        self.essays = essays
        self.name = f"qa_{self.file.stem}"

    @cached_property
    def questions(self) -> list[Question]:
        """All questions of the file, each once."""
        return read_questions(self.file)

    @cached_property
    def paragraphs(self) -> list[str]:
        """All paragraphs of the file, each once."""
        texts = (one for asked in self.questions for one in (*asked.gold, *asked.near))
        return [*dict.fromkeys(texts)]

    @cached_property
    def texts(self) -> list[str]:
        """Each question is asked once."""
        return [asked.text for asked in self.questions]

    @property
    def identity(self) -> str:
        """Identity of the generator, the file and the essays."""
        return f"questions {VERSION} {file_digest(self.file)} {self.essays and self.essays.digest}"

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        rng = random.Random(f"{self.name} {length} {index} {seed}")  # noqa: S311 - no secret
        question = self.questions[draw(self.name, len(self.texts), index, seed)]
        needed = sum(tokenizer.count(f"\n\n{text}") for text in question.gold)
        check_length(self.name, length, needed)
        room = length - needed
        chosen: list[str] = []
        spare: list[str] = []
        for text in self._others(question, rng):
            cost = tokenizer.count(f"\n\n{text}")  # ahead, for blank lines cost more before text
            if cost <= room:
                chosen.append(f"{text}\n\n")
                room -= cost
            else:
                spare.append(f"{text}\n\n")
        if room > length // 100 and not spare and self.essays is None:
            message = (
                f"The paragraphs of {self.file.name} have {length - room:,} tokens, and {length:,} "
                "were asked for: name a folder of texts as filler (--essays)."
            )
            raise ConfigurationError(message)
        placed = [(rng.random(), f"{text}\n\n") for text in question.gold]
        placed += [(rng.random(), text) for text in chosen]
        state = rng.getstate()

        def pieces() -> Iterator[str]:
            fresh = random.Random()  # noqa: S311 - no secret
            fresh.setstate(state)
            filler = chain(spare, _essay(self.essays, fresh) if self.essays else ())
            return fill_document(filler, placed, length, tokenizer.count)

        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=question.text,
            answers=question.answers,
            metric="any",
            pieces=pieces,
            template=TEMPLATE,
            answer_tokens=ANSWER_TOKENS,
            cluster=question.cluster,
        )

    def _others(self, question: Question, rng: random.Random) -> Iterator[str]:
        """Yield what does not answer a question, at random, its own distractors first."""
        near = [text for text in question.near if text not in question.gold]
        known = {*question.gold, *near}
        far = [text for text in self.paragraphs if text not in known]
        yield from rng.sample(near, len(near))
        yield from rng.sample(far, len(far))


def _essay(source: Source, rng: random.Random) -> Iterator[str]:
    """Parts of a text from somewhere in its middle on, over and over."""
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
