"""Tasks from files of questions: HotpotQA, SQuAD, Natural Questions; and RULER's samples.

MemAgent (arXiv 2507.02259) is trained and measured on HotpotQA's questions, whose paragraphs
stand among others, as in RULER's task qa_2.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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

    from memagent_graph.evaluation.samples import Metric, Unit
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

_SENTENCE_END = re.compile(r"[.!?。！？][\"”’」)]*\s+")
_PARAGRAPH = 120
"""Tokens of an essay's part, about."""


@dataclass(frozen=True)
class Question:
    """A question that the paragraphs `gold` answer; `near` are the benchmark's own distractors.

    Any of the answers is enough.
    """

    text: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]
    near: tuple[str, ...] = ()


def read_questions(file: Path) -> list[Question]:
    """All questions of a file, each once, in the file's order.

    A question that occurs twice gets the answers of both rows and the paragraphs of the first.
    """
    try:
        rows = read_rows(file)
        parse = next(parse for key, parse in _FORMATS.items() if key in rows[0])
        return _join(question for row in rows for question in parse(row))
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


# RULER's samples (NVIDIA/RULER, Apache-2.0; arXiv 2404.06654), asked as they are. A prompt is a
# document between an instruction and a question: what opens and closes them is known here.


class _RulerForm(NamedTuple):
    """Words around the document in the prompts of a kind of task; `tokens` of an answer at most.

    The instruction `begins` and `ends` so; the document ends with `link`, and the question `asks`
    from there on.
    """

    task: str
    begins: str
    ends: str
    link: str
    asks: str
    tokens: int


_ASKED = "\nQuestion: "
_RULER_FORMS = (
    _RulerForm("niah", "A special magic ", "afterwards.\n", "\nWhat ", "\n", 128),
    _RulerForm("niah", "Some special magic ", "afterwards.\n", "\nWhat ", "\n", 128),
    _RulerForm("vt", "Memorize and track ", "following text.\n\n", _ASKED, _ASKED, 30),
    _RulerForm("cwe", "Below is a numbered list ", "most often.\n", _ASKED, _ASKED, 120),
    _RulerForm("fwe", "Read the following coded ", "coded words. ", _ASKED, _ASKED, 50),
    _RulerForm("qa", "Answer the question ", "documents.\n\n", "\n\nAnswer the ", _ASKED, 32),
)

RULER_VERSION = 2
"""Version of the samples; a change for the same file increases it."""


class RulerTask(Task):
    """Asks the samples of a file as they are, each once: all of them, or some under a name.

    Lines of JSON have RULER's "input", "outputs" and, from newer generators, "answer_prefix" and
    "task"; or MemAgent's "input", "answers" and "context".
    """

    unit: Unit = "whole"

    def __init__(self, file: str | Path, name: str = "", some: list[Sample] | None = None) -> None:
        self.file, self._part, self._some = Path(file), name, some
        self.name = f"ruler_{name or self.file.stem}"

    @cached_property
    def _asked(self) -> list[Sample]:
        return self._some or [sample for _, sample in _read_ruler(self.file)]

    @property
    def identity(self) -> str:
        """Identity of the samples and the file."""
        return f"ruler {RULER_VERSION} {self._part} {file_digest(self.file)}"

    @cached_property
    def texts(self) -> list[str]:
        """Questions with their answers: all documents may be asked the same."""
        return [" ".join((sample.question, *sample.answers)) for sample in self._asked]

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample; the seed chooses which are asked first."""
        asked = self._asked[draw(self.name, len(self._asked), index, seed)]
        return replace(asked, id=f"{self.name}/{length}/{index}", task=self.name, length=length)


def ruler_tasks(file: str | Path) -> list[RulerTask]:
    """One task for each that a file has samples of, in the file's order.

    Raises:
        ConfigurationError: The file cannot be read, or a line is not a sample of RULER.
    """
    groups: defaultdict[str, list[Sample]] = defaultdict(list)
    for name, sample in _read_ruler(Path(file)):
        groups[name].append(sample)
    return [RulerTask(file, name, group) for name, group in groups.items()]


def _read_ruler(file: Path) -> Iterator[tuple[str, Sample]]:
    """The task and the sample of each line; documents stay in the file."""
    start = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    name, _, sample = _parse_ruler(line, file, number)
                    pieces = partial(_read_document, file, number, start)
                    yield name, replace(sample, pieces=pieces)
                start += len(line)
    except OSError as error:
        message = f"{file} cannot be read: {error}"
        raise ConfigurationError(message) from error


def _read_document(file: Path, number: int, start: int) -> Iterator[str]:
    with file.open("rb") as lines:
        lines.seek(start)
        yield _parse_ruler(lines.readline(), file, number)[1]


def _parse_ruler(line: bytes, file: Path, number: int) -> tuple[str, str, Sample]:
    """Return a line's task, its document, and its sample without that."""
    where = f"{file}, line {number}"
    try:
        row = json.loads(line)
        found: tuple[str, str, str, str, int] | None
        if "context" in row:
            found = file.stem, "".join(row["context"]), row["input"], TEMPLATE, ANSWER_TOKENS
            answers, any_ = tuple(row["answers"]), True
        else:
            found = _split_ruler(row["input"], row.get("answer_prefix", ""))
            answers, any_ = tuple(map(str, row["outputs"])), found is not None and found[0] == "qa"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{where} is not a sample of RULER: {error!r}. Write one sample a line."
        raise ConfigurationError(message) from error
    if found is None or not answers:
        message = (
            f"{where} has a prompt that is not RULER's own, or no outputs. Generate the file with "
            "RULER's default templates and `--model_template_type base`."
        )
        raise ConfigurationError(message)
    name, document, question, template, tokens = found
    metric: Metric = "any" if any_ else "all"
    sample = Sample("", "", 0, question, answers, metric, lambda: iter(()), template, tokens)
    return str(row.get("task") or name), document, sample


def _split_ruler(prompt: str, prefix: str) -> tuple[str, str, str, str, int] | None:
    """Return the task of a prompt of RULER's, its document, question and template, and tokens."""
    form = next((form for form in _RULER_FORMS if prompt.startswith(form.begins)), None)
    if form is None or form.ends not in prompt:
        return None
    instruction = prompt[: prompt.index(form.ends) + len(form.ends)]
    start = prompt.rindex(instruction) + len(instruction)  # behind the example that some tasks show
    end = prompt.rfind(form.link)
    asked = prompt.find(form.asks, end) + len(form.asks)
    if not start <= end < asked:
        return None
    template = f"{prompt[:start]}{{memory}}{prompt[end:asked]}{{question}}{prefix}"
    return form.task, prompt[start:end], prompt[asked:], template, form.tokens
