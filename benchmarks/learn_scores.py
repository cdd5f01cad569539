"""How many questions a model of `tiny_reader.py` answers right, in words that it has never seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiny_language import HELD_OUT, LONGEST, SECTION, sample
from tiny_lessons import END, GO
from tiny_reader import PROMPTS, VOCABULARY, make_tokenizer
from transformers import AutoModelForCausalLM

from memagent_graph import ReadingConfig
from memagent_graph.models.transformers import DecodingRow, decode
from memagent_graph.rl.rewards import exact
from memagent_graph.text.chunks import last_sentence_end

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memagent_graph.evaluation.samples import Sample

HOPS = (1, 2)
TRAINED_ON = 4
"""Sections of a document to learn from."""
TIMES = {1: 400, 110: 400, 4: 400, 16: 400, 256: 60}
"""How many times as long the documents are that are asked about, and how many of them."""
BUDGETS = {"memory_tokens": LONGEST + 1, "answer_tokens": 2}
READING = ReadingConfig(chunk_tokens=SECTION, question_tokens=4, **BUDGETS)
SEED = 1_000_000


def held_out(hops: int, times: int, count: int, *, seed: int) -> list[Sample]:
    """Questions of evaluations: the same for all models of a seed, and others for other seeds."""
    about = {"hops": hops, "chunks": times * TRAINED_ON, "seed": SEED + seed}
    return [sample(index, words=HELD_OUT, **about) for index in range(count)]


def score(model: Path, samples: Sequence[Sample], *, temperature: float = 0.0) -> list[float]:
    """1 for each question that is answered right, else 0."""
    answers = read(model, samples, temperature=temperature)
    return [exact(answer, one.answers) for answer, one in zip(answers, samples, strict=True)]


def read(model: Path, samples: Sequence[Sample], *, temperature: float = 0.0) -> list[str]:
    """The answers to questions over documents of as many sections, read side by side.

    They are those that the reading graph comes to with the reader that training has, which a
    test compares; here a section is one call for all documents, without the graph's own cost.
    """
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="float32").eval()
    ids = {word: number for number, word in enumerate(VOCABULARY)}
    backend, ends = make_tokenizer().backend_tokenizer, frozenset([ids[END]])

    def reply(prompts: Sequence[str], tokens: int) -> list[DecodingRow]:
        rows = [
            DecodingRow([*(ids[word] for word in prompt.split()), ids[GO]], tokens, temperature)
            for prompt in prompts
        ]
        decode(loaded, backend, ends, rows)
        return rows

    questions, notes = [one.question for one in samples], [""] * len(samples)
    budget = BUDGETS["memory_tokens"]
    for pieces in zip(*(one.pieces() for one in samples), strict=True):
        prompts = [
            PROMPTS.for_update(question, known, piece, budget)
            for question, known, piece in zip(questions, notes, pieces, strict=True)
        ]
        written = [_whole(row) for row in reply(prompts, budget)]
        # An empty reply leaves the notes as they are.
        notes = [new or old for new, old in zip(written, notes, strict=True)]
    prompts = [PROMPTS.for_answer(*pair) for pair in zip(questions, notes, strict=True)]
    return [row.text.strip() for row in reply(prompts, BUDGETS["answer_tokens"])]


def _whole(row: DecodingRow) -> str:
    """The notes of a reply; of one that was cut off, without the word that may be in part."""
    text = row.text.strip()
    return text if row.finish_reason == "stop" else text[: last_sentence_end(text)].rstrip() or text
