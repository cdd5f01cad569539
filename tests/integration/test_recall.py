from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from memagent_graph import create_memagent

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "extractive_recall.py"


@pytest.fixture(scope="module")
def recall():
    spec = importlib.util.spec_from_file_location("extractive_recall", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "every", "in_memory", "in_answer"),
    [
        ("xquad.en.json", 17, 0.93, 0.75),
        ("xquad.zh.json", 9, 0.93, 0.75),
        ("hotpotqa_distractor.json", 1, 0.85, 0.4),
    ],
)
def test_the_gold_answer_is_kept_and_quoted(recall, data, file, every, in_memory, in_answer):
    if not (data / file).exists():
        pytest.skip(f"{file} is not in MEMAGENT_DATA")
    load = recall.hotpot if file.startswith("hotpot") else recall.squad
    document, items = load(data / file)
    agent = create_memagent("extractive")
    items = items[::every]

    outs = [agent.invoke({"question": item.question, "document": document}) for item in items]

    kept = [recall.has(out["memory"], i) for out, i in zip(outs, items, strict=True)]
    quoted = [recall.has(out["answer"], i) for out, i in zip(outs, items, strict=True)]
    assert sum(kept) / len(items) >= in_memory
    assert sum(quoted) / len(items) >= in_answer
