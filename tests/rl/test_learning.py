"""The small task of `benchmarks/learn.py`: what it asks, what its warm-up shows, and a tiny run."""

import json
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def learn(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("learn")


def words_of(sample):
    return {word for piece in sample.pieces() for word in piece.split()}


def known(words):
    return {*words.towns, *words.things}


@pytest.mark.slow
def test_no_word_that_evaluations_ask_about_is_in_a_training_question(learn):
    tiny = import_module("tiny_reader")
    kept = known(tiny.HELD_OUT)
    asked = [learn.question(number, seed=5) for number in range(3_000)]
    evaluated, learned = asked[: learn.ASKED_HELD_OUT], asked[learn.ASKED_HELD_OUT :]

    assert not kept & known(tiny.TRAINING)
    assert not any(kept & {one.question, *one.answers} for one in learned)
    assert not any(kept & words_of(one) for one in learned[::50])
    assert all({one.question, *one.answers} <= kept for one in evaluated)
    for one in learn.held_out(2, 4, 50, seed=5):
        assert {one.question, *one.answers} <= kept
        assert not known(tiny.TRAINING) & words_of(one)


@pytest.mark.slow
def test_a_tiny_run_is_resumed_and_reported(learn, tmp_path, monkeypatch, capsys):
    small = {"iterations": 1, "questions": 2, "group_size": 2, "evaluate_every": 1, "held_out": 2}
    steps = {"recall": 1, "several": 1}

    run = learn.Run(5, tmp_path, steps=steps, **small)
    run.models()
    run.scores({1: 6, 3: 2})

    rows = learn.read_rows(tmp_path / "rows.jsonl")
    assert [row["way"] for row in rows if row["kind"] == "model"] == [*learn.WAYS]
    assert sum(row["kind"] == "score" for row in rows) == 4 * 2 * 2
    assert run.shares("ours", 1).keys() == {"1-hop", "2-hop"}
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write(json.dumps(rows[-1])[:20])  # as a killed process leaves it
    monkeypatch.setattr(learn, "score", lambda _model, samples: [0.0] * len(samples))
    again = learn.Run(5, tmp_path, steps=steps, **small)
    again.scores({1: 6, 2: 1, 3: 2}, ["ours"])
    assert learn.read_rows(tmp_path / "rows.jsonl")[: len(rows)] == rows
    more = learn.read_rows(tmp_path / "rows.jsonl")[len(rows) :]
    assert [(row["hops"], row["times"]) for row in more] == [(1, 2), (2, 2)]
    monkeypatch.setattr(learn, "LONG", 3)
    tables = learn.write_report(rows, tmp_path / "plots")
    assert "GRPO, last conversation alone" in tables
    assert (tmp_path / "plots" / "extrapolation.png").stat().st_size > 1000
