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

from memagent_graph.models.transformers import ChatTransformers
from memagent_graph.rl.advantages import Baseline, make_training_rows
from memagent_graph.rl.loop import Journal
from memagent_graph.rl.rewards import exact
from memagent_graph.rl.rollouts import RolloutRunner

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    """Half of the time of a tiny run; `test_training.py` has a test of them."""
    monkeypatch.setattr(Journal, "draw", lambda _: None)


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
    return {word for piece in sample.pieces() for word in piece.text.split()}


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
            pairs = language.pairs_of(piece.text)
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
        text = " ".join(piece.text.strip() for piece in one.pieces())
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


def test_the_last_conversation_alone_has_an_advantage(bench, reader, fresh):
    learn, scores = bench("learn"), bench("learn_scores")
    chat = ChatTransformers(
        model=str(fresh), dtype="float32", logprobs=True, temperature=1.0, max_batch=64
    )
    worth = iter(range(1000))
    runner = RolloutRunner(
        chat,
        reader.make_tokenizer(),
        config=scores.READING,
        prompts=reader.PROMPTS,
        reward=lambda _answer, _truths: float(next(worth)),
        rescore=learn.last_alone,
    )
    found = asyncio.run(runner.collect([learn.question(70, seed=5)], times=4))
    chat.close()
    settings = learn.settings(fresh, fresh.parent, 5, step_weight=1.0)
    vocabulary = found.rollouts[0].conversations[0].tokenizer

    rows, _ = make_training_rows(
        found.rollouts, vocabulary=vocabulary, settings=settings, baseline=Baseline()
    )

    assert len(rows) == 4 * 5
    assert [bool(row.advantage) for row in rows] == ([False] * 4 + [True]) * 4


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


@pytest.mark.slow
def test_each_change_of_a_setting_is_trained_from_the_same_warm_up(bench, tmp_path):
    ablations, rows_of = bench("learn_ablations"), bench("learn_rows")
    small = {"iterations": 1, "questions": 2, "group_size": 2, "held_out": 2}
    steps = {"recall": 2, "several": 2}

    for _ in range(2):  # the second finds everything made
        ablations.ablate(5, tmp_path, times={1: 4}, steps=steps, **small)

    rows = rows_of.read_rows(tmp_path / "ablations.jsonl")
    made = [row["way"] for row in rows if row["kind"] == "model"]
    assert made == [*ablations.CHANGES]
    assert len(rows) == 3 * len(made)
    [_, *lines] = [line for line in ablations.report(rows).splitlines() if "(" in line]
    assert all("points" in line for line in lines), lines


def test_what_the_warm_up_of_gates_shows_is_what_the_reader_of_chats_takes_apart(bench, reader):
    gates, replies = bench("learn_gates"), import_module("memagent_graph.readers.replies")
    rng, tokenizer = random.Random(5), reader.make_tokenizer()
    shown = {"unchanged": 0, "enough": 0, "back": 0, "notes": 0}
    for number in range(400):
        words, learned = gates.show(rng, looked=number % 4 == 0)
        ids = tokenizer.convert_tokens_to_ids(words)
        reply = tokenizer.decode(
            [one for one, new in zip(ids, learned, strict=True) if new], skip_special_tokens=True
        )
        gated = "ENOUGH:" in words[: learned.index(True)]
        notes, answer = replies.split_enough(reply)
        notes, recall = replies.split_look_back(notes, ())
        shown["unchanged"] += replies.is_unchanged(notes)
        shown["enough"] += answer is not None
        shown["back"] += recall is not None
        shown["notes"] += answer is None and recall is None and not replies.is_unchanged(notes)
        assert gated or (answer is None and not replies.is_unchanged(notes))
        assert "\n" not in notes
    assert min(shown.values()) > 30, shown


@pytest.mark.slow
def test_a_tiny_run_with_gates_is_resumed_and_reported(bench, tmp_path):
    gates, rows = bench("learn_gates"), bench("learn_rows")
    small = {"iterations": 2, "questions": 2, "group_size": 2, "evaluate_every": 0, "held_out": 2}
    run = gates.GateRun(5, tmp_path, steps=2, begun={"recall": 2, "several": 2}, **small)
    run.models()
    run.scores(3)

    found = rows.read_rows(tmp_path / "gates.jsonl")
    run.models()
    run.scores(3)

    assert rows.read_rows(tmp_path / "gates.jsonl") == found
    ways = ["plain", "gated", "told"]
    assert [row["way"] for row in found] == ["before", *ways, *ways, *ways]
    table = gates.report(found, tmp_path, tmp_path / "plots")
    assert "in the first fifth" in table
    assert (tmp_path / "plots" / "gates.png").stat().st_size > 1000
