import json
import os
import sys

import pytest
from servers.warm_python import COMMAND_LINE, warm_python
from typer.testing import CliRunner

from memagent_graph.cli.app import app


@pytest.fixture
def found(monkeypatch):
    """Run the command in this process; its checks by their names."""

    def run(*arguments, **environment):
        for name in ("MEMAGENT_MODEL", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        words, env = ["doctor", "--json", *map(str, arguments)], {"MEMAGENT_STORE": "none"}
        done = CliRunner().invoke(app, words, env=env | environment)
        report = json.loads(done.stdout)
        assert done.exit_code == (0 if report["ok"] else 1), done.output
        return {check["name"]: check for check in report["checks"]}

    return run


def test_all_is_well_with_a_server_that_has_the_model_and_a_store(openai_server, redis):
    openai_server.models = [{"id": "small", "max_model_len": 32768}]
    arguments = ["--model", "openai:small", "--base-url", openai_server.base_url]

    command = [sys.executable, "-m", "memagent_graph", "doctor", *arguments, "--store", redis.url]
    env = {name: value for name, value in os.environ.items() if "MEMAGENT" not in name}
    done = warm_python(*COMMAND_LINE).run(command, env=env)

    lines = done.stdout.splitlines()
    status = {line[6:15].strip(): line[:4].strip() for line in lines if line[:4].strip()}
    assert done.returncode == 0
    assert done.stderr == ""
    assert set(status.values()) <= {"ok", "warn", "fail"}
    for name in ("model", "endpoint", "name", "context", "call", "store"):
        assert status[name] == "ok", done.stdout
    assert status["tokenizer"] == "warn"
    assert "\x1b" not in done.stdout
    assert len(openai_server.requests) == 1
    with redis.client() as client:
        assert [key for key in client.scan_iter() if b"memagent_doctor" in key] == []


def test_without_a_model_it_says_how_to_name_one_and_calls_nothing(found):
    report = found()

    assert report["model"]["status"] == "warn"
    assert "MEMAGENT_MODEL" in report["model"]["fix"]
    assert report["store"]["status"] == "warn"
    assert "call" not in report


def test_a_server_and_a_store_that_are_not_there_fail_each_with_what_to_do(found):
    report = found(
        *("--model", "openai:small", "--base-url", "http://127.0.0.1:9/v1"),
        *("--store", "redis://127.0.0.1:9"),
    )

    assert (report["endpoint"]["status"], report["store"]["status"]) == ("fail", "fail")
    assert "--base-url" in report["endpoint"]["fix"]
    assert "--store" in report["store"]["fix"]
    assert "call" not in report


@pytest.mark.parametrize(("owner", "status"), [("", "warn"), ("vllm", "fail")])
def test_a_wrong_name_lists_the_right_ones_and_the_call_decides(
    found, openai_server, owner, status
):
    openai_server.models = [{"id": "small", "max_model_len": 9000, "owned_by": owner}]
    openai_server.script = [404]

    report = found("--model", "openai:smal", "--base-url", openai_server.base_url)

    assert report["name"]["status"] == status
    assert "small" in report["name"]["fix" if status == "warn" else "text"]
    assert len(openai_server.requests) == (status == "warn")
    assert status == "fail" or "it serves small" in report["call"]["text"]


@pytest.mark.parametrize(
    ("window", "options", "status", "words"),
    [
        (8328, [], "ok", "8328"),
        (8192, [], "warn", "888 tokens"),
        (4096, [], "fail", "chunk_tokens to 768"),
        (4096, ["--set", "chunk_tokens=700"], "ok", "4096"),
        (None, [], "warn", "8328"),
    ],
)
def test_budgets_are_held_against_the_context(found, openai_server, window, options, status, words):
    openai_server.models = [{"id": "small", "max_model_len": window}]

    report = found("--model", "openai:small", "--base-url", openai_server.base_url, *options)

    context = report["context"]
    assert context["status"] == status
    assert words in context["text"] + context["fix"]


def test_the_environment_names_model_server_and_store(found, openai_server, tmp_path):
    report = found(
        MEMAGENT_MODEL="openai:small",
        OPENAI_BASE_URL=openai_server.base_url,
        OPENAI_API_KEY="k",
        MEMAGENT_STORE=str(tmp_path / "memories.sqlite"),
    )

    assert "with a key" in report["endpoint"]["text"]
    assert report["store"]["status"] == "ok"


def test_a_tokenizer_that_is_not_there_and_a_model_that_nobody_knows_fail(found, openai_server):
    served = ("--model", "openai:small", "--base-url", openai_server.base_url)

    missing = found(*served, "--tokenizer", "/no/such/tokenizer.json", HF_HUB_OFFLINE="1")
    unknown = found("--model", "no such model")

    assert missing["tokenizer"]["status"] == "fail"
    assert unknown["model"]["status"] == "fail"


@pytest.mark.parametrize("behaviour", [401, 500, "empty", "drop"])
def test_a_call_that_fails_says_why(found, openai_server, behaviour):
    openai_server.script = [behaviour]

    report = found("--model", "openai:small", "--base-url", openai_server.base_url)

    assert report["call"]["status"] == "fail"
    assert report["call"]["text"]
