"""What cannot be made is said, and a long sample takes no memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paragraphs import squad

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.text.tokens import EstimatingTokenizer

COUNTER = EstimatingTokenizer()


def test_what_cannot_be_made_is_said(tmp_path):
    with pytest.raises(ConfigurationError, match="no task 'nix'"):
        make_task("nix")
    with pytest.raises(ConfigurationError, match="9,000 were asked for.* filler"):
        make_task(f"qa:{squad(tmp_path)}").sample(9_000, 0, seed=0, tokenizer=COUNTER)
    with pytest.raises(ConfigurationError, match="nothing.json"):
        make_task("qa:nothing.json").sample(9_000, 0, seed=0, tokenizer=COUNTER)


PEAK = """
import asyncio, resource, sys
from fixed_readers import ChainReader
from memagent_graph.config import ReadingConfig
from memagent_graph.evaluation.methods import make_method
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.text.tokens import EstimatingTokenizer
from vaults import VaultTask

reads, *lengths = sys.argv[1:]
config = ReadingConfig()
reader = resolve_reader("extractive", config=config) if reads == "extractive" else ChainReader()
for length in map(int, lengths):
    sample = VaultTask().sample(length, 0, seed=0, tokenizer=EstimatingTokenizer())
    method = make_method("memagent", reader, config)
    outcome = asyncio.run(method(sample.question, sample.open()))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, len(outcome.memories))
"""


@pytest.mark.slow
@pytest.mark.parametrize("reads", ["extractive", "nothing"])
def test_the_longest_sample_takes_hardly_more_memory_than_a_short_one(reads):
    command = [sys.executable, "-c", PEAK, reads, "8192", "3670016"]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    printed = subprocess.check_output(command, text=True, env={**os.environ, "PYTHONPATH": paths})

    short, few, long, many = map(int, printed.split())
    assert few < 5
    assert many > 600
    assert long - short < 40
