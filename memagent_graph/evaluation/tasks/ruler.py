"""RULER's prompts, a parser of them, and the samples that its own generator wrote.

The templates are those of NVIDIA/RULER (Apache-2.0; arXiv 2404.06654), word for word: they are the
benchmark's format. The code is ours.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Literal, NamedTuple

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import Piece, Sample, Task, Unit, draw, file_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.text.tokens import Tokenizer

Kind = Literal["niah", "vt", "cwe", "fwe", "qa"]


@dataclass(frozen=True)
class Form:
    """The texts that RULER puts around a document, with fields in braces.

    Attributes:
        kind: kind of task.
        instruction: text before the document.
        link: text between the document and the question.
        question: the question.
        prefix: the beginning of the answer.
        tokens: the longest answer.
        gap: text after the answer of an example, where the kind has one.
    """

    kind: Kind
    instruction: str
    link: str
    question: str
    prefix: str
    tokens: int
    gap: str = ""

    def ask(self, **fields: object) -> str:
        """The question alone."""
        return self.question.format(**fields)

    def template(self, example: str = "", /, **fields: object) -> str:
        """The prompt with {memory} in the place of the document, and {question} of its own."""
        before, after = self.instruction.format(**fields), self.prefix.format(**fields)
        return f"{example}{before}{{memory}}{self.link}{{question}}{after}"

    def example(self, document: str, answer: str, **fields: object) -> str:
        """A prompt with its answer, to stand before another."""
        prompt = self.template(**fields).replace("{memory}", document)
        return prompt.replace("{question}", self.ask(**fields)) + f" {answer}{self.gap}"


def room(template: str, question: str, answer: int, *, length: int, tokenizer: Tokenizer) -> int:
    """Return the tokens left for the document: RULER counts the whole prompt and the answer.

    Args:
        template: template of the prompt.
        question: the question.
        answer: longest answer, in tokens.
        length: length of everything, in tokens.
        tokenizer: counts tokens.
    """
    around = template.replace("{memory}", "").replace("{question}", question)
    return length - tokenizer.count(around) - answer


NEEDLE = "One of the special magic {type}s for {query} is: {value}."
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
ONE_VALUE = Form(
    "niah",
    "A special magic {type} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {type} afterwards.\n",
    "\n",
    "What is the special magic {type} for {query} mentioned in the provided text?",
    " The special magic {type} for {query} mentioned in the provided text is",
    128,
)
SOME_VALUES = Form(
    "niah",
    "Some special magic {type}s are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {type}s afterwards.\n",
    "\n",
    "What are all the special magic {type}s for {query} mentioned in the provided text?",
    " The special magic {type}s for {query} mentioned in the provided text are",
    128,
)
TRACKING = Form(
    "vt",
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
    "\nQuestion: ",
    "Find all variables that are assigned the value {query} in the text above.",
    " Answer: According to the chain(s) of variable assignment in the text above, {count} "
    "variables are assigned the value {query}, they are: ",
    30,
    "\n\n",
)
COMMON_WORDS = Form(
    "cwe",
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n",
    "\nQuestion: ",
    "What are the {count} most common words in the above list?",
    " Answer: The top {count} words that appear most often in the list are:",
    120,
    "\n",
)
FREQUENT_WORDS = Form(
    "fwe",
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. ",
    "\nQuestion: ",
    "Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?",
    " Answer: According to the coded text above, the three most frequently appeared words are:",
    50,
)
_ONLY = (
    "Answer the question based on the given documents. "
    "Only give me the answer and do not output any other words."
)
PASSAGES = Form(
    "qa",
    f"{_ONLY}\n\nThe following are given documents.\n\n",
    f"\n\n{_ONLY}\n\nQuestion: ",
    "{query}",
    " Answer:",
    32,
)
FORMS = (ONE_VALUE, SOME_VALUES, TRACKING, COMMON_WORDS, FREQUENT_WORDS, PASSAGES)


@dataclass(frozen=True)
class Parts:
    """A prompt of RULER's, taken apart.

    Attributes:
        form: form of the prompt.
        document: the document.
        question: the question.
        prefix: the beginning of the answer.
        head: the text before the document.
        answer: text after the prefix in an example; otherwise empty.
        fields: values of the form's fields.
        examples: prompts with their answers, in front of the instruction.
    """

    form: Form
    document: str
    question: str
    prefix: str
    head: str
    answer: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    examples: tuple[Parts, ...] = ()

    @property
    def template(self) -> str:
        """The prompt with {memory} and {question} in the places of these."""
        return f"{self.head}{{memory}}{self.form.link}{{question}}{self.prefix}"


def parse(prompt: str) -> Parts | None:
    """Take a prompt with its answer prefix apart; None if it has no form of RULER's."""
    for form in FORMS:
        parts = _parse(form, prompt)
        if parts is not None:
            return parts
    return None


def _parse(form: Form, prompt: str) -> Parts | None:
    opened = _read(form.instruction, prompt)
    if opened is None:
        return None
    fields, start = opened
    before = prompt[:start]
    *shown, last = prompt[start:].split(before) if form.gap else [prompt[start:]]
    examples = [_turn(form, before, body.removesuffix(form.gap), fields) for body in shown]
    asked = _turn(form, prompt[: len(prompt) - len(last)], last, fields)
    if asked is None or asked.answer or None in examples:
        return None
    return replace(asked, examples=tuple(one for one in examples if one))


def _turn(form: Form, head: str, body: str, fields: dict[str, str]) -> Parts | None:
    link = form.link + form.question.partition("{")[0]
    end = body.rfind(link)
    read = _read(f"{form.link}{form.question}{form.prefix}{{answer}}", body, max(end, 0), fields)
    if read is None:
        return None
    found = read[0]
    answer = found.pop("answer")
    question = form.question.format(**found)
    prefix = form.prefix.format(**found)
    return Parts(form, body[:end], question, prefix, head, answer, found)


def _read(
    pattern: str, text: str, start: int = 0, known: dict[str, str] | None = None
) -> tuple[dict[str, str], int] | None:
    """Return the values of a pattern's fields, and the end; None if the text has another form.

    The last field reaches to the end of the text, others to where the pattern goes on.
    """
    found, name = dict(known or {}), None
    for literal, following, *_ in Formatter().parse(pattern):
        end = text.find(literal, start) if name else start
        if end < 0 or not text.startswith(literal, end):
            return None
        if name and found.setdefault(name, text[start:end]) != text[start:end]:
            return None
        start, name = end + len(literal), following
    if name:
        found[name], start = text[start:], len(text)
    return found, start


class RulerStatement(NamedTuple):
    """Something that a document says.

    Attributes:
        start: its first code point.
        end: one past its last.
        subject: a key, a variable, or a word.
        value: value of the key or variable; the number in a list.
    """

    start: int
    end: int
    subject: str
    value: str


def statements(kind: Kind, document: str) -> Iterator[RulerStatement]:
    """Yield the statements of a document, in order: needles, assignments, or each of its words."""
    if kind == "niah":
        yield from _needles(document)
    elif kind == "cwe":
        yield from _parse_list(document)
    elif kind in {"vt", "fwe"}:
        start = 0
        for part in document.split("\n" if kind == "vt" else " "):
            subject, _, value = part.removeprefix("VAR ").partition(" = ")
            if kind == "fwe" or part.startswith("VAR "):
                yield RulerStatement(start, start + len(part), subject, value.rstrip())
            start += len(part) + 1


def _needles(document: str) -> Iterator[RulerStatement]:
    start = 0
    while (start := document.find(NEEDLE.partition("{")[0], start)) >= 0:
        read = _read(NEEDLE, document, start)
        if read is None:
            return
        fields, end = read
        yield RulerStatement(start, end, fields["query"], fields["value"])
        start = end


def _parse_list(document: str) -> Iterator[RulerStatement]:
    start = 0
    for number in count(1):
        after = document.find(f" {number + 1}. ", start)
        end = after if after >= 0 else len(document)
        place, _, word = document[start:end].partition(". ")
        yield RulerStatement(start, end, word, place)
        if after < 0:
            return
        start = end + 1


RULER_VERSION = 1
"""Version of the generator; a change of the samples for equal arguments increases it."""
_UUID = 36
"""Characters of a UUID."""


@dataclass(frozen=True)
class _RulerRow:
    task: str
    parts: Parts
    outputs: tuple[str, ...]


class RulerFileTask(Task):
    """The samples of a file, or those of one task in it; prompts are shown as they stand there.

    Args:
        file: lines of JSON with "input", "outputs" and, from newer generators, "answer_prefix".
        task: the task whose samples to ask, as `task_of` names it; empty for all.
    """

    unit: Unit = "whole"

    def __init__(self, file: str | Path, task: str = "") -> None:
        self.file = Path(file)
        self.task = task
        self.name = f"ruler_{task or self.file.stem}"

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """Line number and first byte of each sample: the samples stay in the file.

        Raises:
            ConfigurationError: The file cannot be read, or a line is not a sample of RULER.
        """
        rows = _rows(self.file)
        return [place for place, task in rows if self.task in {"", task}]

    @property
    def identity(self) -> str:
        """Identity of the generator and the file."""
        return f"ruler {RULER_VERSION} {self.task} {file_digest(self.file)}"

    @property
    def count(self) -> int:
        """Each sample is asked once."""
        return len(self.places)

    @cached_property
    def texts(self) -> list[str]:
        """Questions, with the answers where all documents of a task are asked the same."""
        rows = map(self._read, self.places)
        return [
            " ".join((row.parts.question, *(() if row.parts.form is PASSAGES else row.outputs)))
            for row in rows
        ]

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample; the seed chooses which are asked first."""
        row = self._read(self.places[draw(self.name, self.count, index, seed)])
        form = row.parts.form
        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=row.parts.question,
            answers=row.outputs,
            metric="any" if form is PASSAGES else "all",
            pieces=lambda: _pieces(row),
            template=row.parts.template,
            answer_tokens=form.tokens,
        )

    def _read(self, place: tuple[int, int]) -> _RulerRow:
        number, start = place
        with self.file.open("rb") as file:
            file.seek(start)
            return _row(self.file, number, file.readline())


def ruler_tasks(file: str | Path) -> list[RulerFileTask]:
    """One task for each that a file has samples of, in the file's order.

    Raises:
        ConfigurationError: The file cannot be read, or a line is not a sample of RULER.
    """
    return [RulerFileTask(file, task) for task in dict.fromkeys(t for _, t in _rows(Path(file)))]


def task_of(parts: Parts) -> str:
    """Return the name of the RULER task of a prompt, by its form; "qa" for both of these."""
    if parts.form.kind != "niah":
        return parts.form.kind
    document = parts.document
    needles = [*statements("niah", document)]
    keys = Counter(needle.subject for needle in needles)
    if " all the " in parts.question:
        return "niah_multivalue" if parts.fields["query"] in keys else "niah_multiquery"
    if document.count("\n") + 1 == len(needles) > 1:
        return f"niah_multikey_{3 if len(needles[0].subject) == _UUID else 2}"
    if len(keys) > 1:
        return "niah_multikey_1"
    noisy = document.count(NOISE) > 1
    return f"niah_single_{1 if noisy else 3 if len(needles[0].value) == _UUID else 2}"


def _rows(file: Path) -> Iterator[tuple[tuple[int, int], str]]:
    """Number, first byte and task of each line."""
    start = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield (number, start), _row(file, number, line).task
                start += len(line)
    except OSError as error:
        message = f"{file} cannot be read: {error}"
        raise ConfigurationError(message) from error


def _row(file: Path, number: int, line: bytes) -> _RulerRow:
    where = f"{file}, line {number}"
    try:
        row = json.loads(line)
        prompt, outputs = row["input"] + row.get("answer_prefix", ""), row["outputs"]
        answers = tuple(str(output) for output in outputs)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{where} is not a sample of RULER: {error!r}"
        raise ConfigurationError(message) from error
    parts = parse(prompt)
    if parts is None or not answers:
        message = (
            f"{where} has a prompt that is not RULER's own, or no outputs. Generate the file with "
            "RULER's default templates and `--model_template_type base`."
        )
        raise ConfigurationError(message)
    return _RulerRow(str(row.get("task") or task_of(parts)), parts, answers)


def _pieces(row: _RulerRow) -> Iterator[Piece]:
    kind, document, end = row.parts.form.kind, row.parts.document, 0
    for found in statements(kind, document):
        if (found.value if kind == "niah" else found.subject) in row.outputs:
            yield Piece(document[end : found.start])
            yield Piece(document[found.start : found.end], evidence=True)
            end = found.end
    yield Piece(document[end:])
