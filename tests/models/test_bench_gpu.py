"""The benchmark that a GPU runs, with its tiny shape: `make bench-gpu`."""

from __future__ import annotations

import json
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from tiny_model import byte_pairs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = spec_from_file_location("gpu", BENCHMARKS / "gpu.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_vocabulary_is_filled_with_text_that_encodes_to_itself():
    tokenizer = byte_pairs(1_000, ids=1_500)

    ids = range(4, 1_500)  # the first are special tokens

    texts = tokenizer.batch_decode([[token] for token in ids], skip_special_tokens=True)
    assert len(tokenizer) == 1_500
    assert all(texts)
    assert [tokenizer.encode(text) for text in texts[1_000 - 4 :]] == [
        [token] for token in range(1_000, 1_500)
    ]


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: make test-vllm")
@pytest.mark.filterwarnings("ignore")  # of vLLM and of what it imports
def test_the_benchmark_of_a_gpu_measures_a_tiny_model(gpu, tmp_path, capsys):
    gpu.main(["--shape", "tiny", "--out", str(tmp_path / "gpu.json")])

    record = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    figures, shape = record["figures"], gpu.SHAPES["tiny"]
    assert record["shape"] == "tiny"
    assert figures["graph: calls"] == shape.documents * (shape.chunks + 1)
    assert figures["1 segment: calls"] == shape.long + 1
    assert figures["8 segments: calls"] > shape.long + 1  # with merges
    assert figures["1 question: hit rate"] < 0.2 < figures["16 questions: hit rate"]
    assert all(value > 0 for name, value in figures.items() if "between" not in name)
    printed = capsys.readouterr().out
    assert all(f"| {name} |" in printed for name in figures)
