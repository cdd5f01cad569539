import asyncio
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import few_samples
import pytest
from few_samples import COUNT
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import tiny_model

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.methods import make_method
from memagent_graph.evaluation.samples import substring_match
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer, load_tokenizer
from memagent_lm_eval import MemAgentLM, split

COUNTER = EstimatingTokenizer()
LENGTHS = '{"max_seq_lengths":[4096]}'


@pytest.mark.parametrize(
    ("document", "question"),
    [
        ("Some numbers are hidden below.\nThe grass is green.\n", "What are all of them?"),
        ("Remember.\n\nVAR A = 1\n", "Question: Find all variables. Answer: they are"),
        ("Answer from the passages.\n\nWho? asked a boy.\n\n", "Question: Who is it?\nAnswer:"),
        ("A report.\n\nIt rained.\n\n", "Sum it up in one line."),
        ("A text.\n", "Where is it?\nThe place is"),
    ],
)
def test_the_question_is_what_the_rules_say(document, question):
    assert split(document + question, COUNTER) == (document, question)


@pytest.mark.parametrize("prompt", ["", "Who is it?", "Tell me a joke."])
def test_a_prompt_without_a_document_is_a_question(prompt):
    assert split(prompt, COUNTER) == ("", prompt)


@given(st.text(alphabet="ab ?\n:Q", max_size=300), st.integers(1, 40))
def test_the_parts_are_the_prompt_and_the_question_keeps_its_budget(prompt, budget):
    document, question = split(prompt, COUNTER, budget)

    assert document + question == prompt
    assert not document or COUNTER.count(question) <= budget


def harness(folder, *words):
    hub = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    command = [sys.executable, few_samples.__file__, "run", "--model", "memagent", *map(str, words)]
    env = {**os.environ, **hub, "PYTHONPATH": os.pathsep.join(sys.path)}
    options = {"capture_output": True, "text": True, "timeout": 1000}
    return subprocess.run(command, cwd=folder, env=env, check=False, **options)


def logged(folder, task):
    (file,) = (folder / "out").rglob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def same_samples_here(records, reader, config, tokenizer):
    """What `memagent eval`'s own method and score make of the harness's samples."""
    method = make_method("memagent", reader, config)
    prompts = [record["arguments"]["gen_args_0"]["arg_0"] for record in records]

    async def all_at_once():
        parts = [split(prompt, tokenizer) for prompt in prompts]
        asked = (method(question, TextSource(document)) for document, question in parts)
        return await asyncio.gather(*asked)

    for record, outcome in zip(records, asyncio.run(all_at_once()), strict=True):
        answer = re.sub(r" \[\S+:\d+\]$", "", outcome.answer, flags=re.MULTILINE)  # its places
        most = record["arguments"]["gen_args_0"]["arg_1"]["max_gen_toks"]
        answer = answer[: tokenizer.prefix(answer, most)]
        yield answer, substring_match(answer, record["doc"]["outputs"], "all")


@pytest.mark.slow
def test_ruler_runs_offline_and_scores_as_our_own_evaluation_does(tmp_path):
    tokenizer = tiny_model(tmp_path / "model")
    tasks = ["niah_single_1", "niah_multikey_2", "niah_multikey_3"]
    tasks += ["ruler_vt", "ruler_cwe", "ruler_fwe"]

    arguments = ("--model_args", f"model=extractive,tokenizer={tokenizer},chunk_tokens=600")
    chosen = ("--tasks", ",".join(tasks), "--limit", COUNT, "--metadata", LENGTHS)
    logs = ("--log_samples", "--output_path", "out")
    done = harness(tmp_path, *arguments, *chosen, *logs)

    assert done.returncode == 0, done.stderr[-3000:]
    counter = load_tokenizer(str(tokenizer))
    config = ReadingConfig(chunk_tokens=600)
    reader = resolve_reader("extractive", config=config, tokenizer=str(tokenizer))
    reader.identity = replace(reader.identity, tokenizer=counter)
    for task in tasks:
        records = logged(tmp_path, task)
        ours = list(same_samples_here(records, reader, config, counter))
        assert len(ours) == COUNT
        for record, (answer, score) in zip(records, ours, strict=True):
            assert record["resps"] == [[answer]]
            assert record["4096"] == score
    assert logged(tmp_path, "niah_single_1")[0]["4096"] == 1


def test_tasks_that_compare_likelihoods_are_refused():
    with pytest.raises(NotImplementedError, match="generate_until"):
        MemAgentLM("extractive").loglikelihood([])


def test_options_are_arguments_of_the_model(tmp_path):
    folder = tiny_model(tmp_path, width=64, layers=1, max_length=1024)
    budgets = {"question_tokens": 64, "chunk_tokens": 2000}

    with pytest.raises(ConfigurationError, match="holds 1024"):
        MemAgentLM(f"hf:{folder}", **budgets)
    longer = {"hf_overrides": {"max_position_embeddings": 8192}}
    assert MemAgentLM(f"hf:{folder}", options=longer, **budgets)
