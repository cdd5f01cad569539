"""The small task of `benchmarks/learn.py`: what it asks, what its warm-up shows, and a tiny run."""

from __future__ import annotations

import asyncio
import json
import random
from importlib import import_module
from math import sqrt
from pathlib import Path

import pytest
import torch
from rl.rollouts import records

from memagent_graph.models.transformers import ChatTransformers
from memagent_graph.rl.rewards import exact
from memagent_graph.rl.rollouts import RolloutRunner
from memagent_graph.rl.traces import join

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


@pytest.fixture
def language(bench):
    return bench("tiny_language")


@pytest.fixture
def reader(bench):
    return bench("tiny_reader")


@pytest.fixture
def lessons(bench):
    return bench("tiny_lessons")


@pytest.fixture
def fresh(reader, tmp_path):
    """A model that has learned nothing yet, and writes what it looks up."""
    torch.manual_seed(5)
    model = reader.make_model()
    model.model.embed_tokens.weight.data[:3] = 0  # or it would write special tokens alone
    return reader.save(model, tmp_path / "fresh")


def words_of(sample):
    return {word for piece in sample.pieces() for word in piece.split()}


def known(words):
    return {*words.towns, *words.things}


@pytest.mark.slow
def test_no_word_that_evaluations_ask_about_is_in_a_training_question(bench, language):
    learn, kept = bench("learn"), known(language.HELD_OUT)
    asked = [learn.question(number, seed=5) for number in range(10_000)]
    evaluated, learned = asked[: learn.ASKED_HELD_OUT], asked[learn.ASKED_HELD_OUT :]

    assert not kept & known(language.TRAINING)
    assert not any(kept & {one.question, *one.answers} for one in learned)
    assert not any(kept & words_of(one) for one in learned[::50])
    assert all({one.question, *one.answers} <= kept for one in evaluated)
    for one in bench("learn_scores").held_out(2, 4, 50, seed=5):
        assert {one.question, *one.answers} <= kept
        assert not known(language.TRAINING) & words_of(one)


@pytest.mark.parametrize("hops", [1, 2])
def test_the_latest_of_conflicting_pairs_counts(language, hops):
    right, stale = 0, 0
    for index in range(300):
        one = language.sample(index, hops=hops, chunks=6, seed=5)
        latest, first = [], []
        for piece in one.pieces():
            pairs = language.pairs_of(piece)
            latest = language.notes_after(one.question, latest, pairs)
            old = {town: value for town, value in pairs.items() if town not in first}
            first = language.notes_after(one.question, first, old)
        right += latest[-1] == one.answers[0]
        stale += first[-1] != one.answers[0]
    assert right == 300
    assert stale > 100


def test_sections_mislead_with_the_asked_town_itself_and_lead_to_it(language):
    denied, led = 0, 0
    for index in range(200):
        one = language.sample(index, hops=1, chunks=4, seed=5)
        text = " ".join(piece.strip() for piece in one.pieces())
        denied += f"{one.question} not " in text
        led += f"{one.question} ;" in text
    assert denied > 100
    assert led > 50


def test_the_warm_up_shows_nothing_of_what_to_keep_or_overwrite(lessons, language):
    rng = random.Random(5)
    seen, expected, spread, kept, overwritten = 0, 0.0, 0.0, 0, 0
    for _ in range(6000):
        chain, notes, _text, pairs = lessons._update(rng)
        right = language.notes_after(chain[0], notes, pairs)
        told = language.known_chain(chain[0], notes)
        if not told or right[: len(told)] == told != right:
            continue  # to look up and to extend is shown
        replies = 1 + (right != notes) + sum(town != chain[0] for town in pairs)
        reply = lessons._reply(rng, chain[0], notes, pairs)
        seen += reply == right
        expected += 1 / replies
        spread += 1 / replies - 1 / replies**2
        if right != notes:
            kept, overwritten = kept + (reply == notes), overwritten + (reply == right)

    assert abs(seen - expected) < 4 * sqrt(spread)
    assert abs(kept - overwritten) < 4 * sqrt(kept + overwritten)


def test_labels_are_the_right_notes_after_each_section_and_the_right_answer(lessons, language):
    one = language.sample(3, hops=2, chunks=4, seed=5)

    examples = [*lessons.labelled(iter([one]))]

    assert len(examples) == 5
    for example in examples:
        reply = [w for w, learned in zip(*example, strict=True) if learned]
        assert reply[-1] == lessons.END
    assert reply[:-1] == [*one.answers]
    before = examples[3].words
    notes = before[before.index("notes") + 1 : before.index("question")]
    assert notes == [w for w, learned in zip(*examples[2], strict=True) if learned][:-1]


@pytest.mark.slow
def test_reading_side_by_side_is_what_the_graph_reads(bench, reader, fresh):
    scores = bench("learn_scores")
    samples = scores.held_out(2, 2, 12, seed=5)
    chat = ChatTransformers(model=str(fresh), dtype="float32", logprobs=True, max_batch=64)
    runner = RolloutRunner(
        chat, reader.make_tokenizer(), config=scores.READING, prompts=reader.PROMPTS, reward=exact
    )

    found = asyncio.run(runner.collect(samples, times=1))
    chat.close()

    answers = {one.group: one.answer for one in found.rollouts}
    assert len({*answers.values()}) > 3
    assert [answers[one.id] for one in samples] == scores.read(fresh, samples)


def test_the_last_conversation_alone_is_trained_on(bench):
    rollouts = join([*records("r1"), *records("r2")]).rollouts

    found = bench("learn").last_alone(rollouts)

    assert [one.conversations for one in found] == [one.conversations[-1:] for one in rollouts]
    assert all(one.conversations[0].final for one in found)


@pytest.mark.slow
def test_a_tiny_run_is_resumed_and_reported(bench, tmp_path, monkeypatch, capsys):
    learn, report, rows_of = bench("learn"), bench("learn_report"), bench("learn_rows")
    small = {"iterations": 2, "questions": 2, "group_size": 2, "evaluate_every": 1, "held_out": 2}
    steps = {"recall": 2, "several": 2}

    run = learn.Run(5, tmp_path, steps=steps, **small)
    run.models()
    run.scores({1: 6, 3: 2})

    rows = rows_of.read_rows(tmp_path / "rows.jsonl")
    assert [row["way"] for row in rows if row["kind"] == "model"] == [*learn.WAYS]
    assert sum(row["kind"] == "score" for row in rows) == 4 * 2 * 2
    assert run.shares("ours", 1).keys() == {"1-hop", "2-hop"}
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write(json.dumps(rows[-1])[:20])  # as a killed process leaves it
    monkeypatch.setattr(learn, "score", lambda _model, samples: [0.0] * len(samples))
    again = learn.Run(5, tmp_path, steps=steps, **small)
    again.scores({1: 6, 2: 1, 3: 2}, ["ours"])
    assert rows_of.read_rows(tmp_path / "rows.jsonl")[: len(rows)] == rows
    more = rows_of.read_rows(tmp_path / "rows.jsonl")[len(rows) :]
    assert [(row["hops"], row["times"]) for row in more] == [(1, 2), (2, 2)]
    monkeypatch.setattr(report, "LONG", 3)
    tables = report.write_report(rows, tmp_path, tmp_path / "plots")
    assert "GRPO, last conversation alone" in tables
    assert (tmp_path / "plots" / "learning.png").stat().st_size > 1000
    assert (tmp_path / "plots" / "extrapolation.png").stat().st_size > 1000
