"""`memagent serve`, as a person starts it."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from openai import APIError, OpenAI
from servers.http_process import http_process
from servers.warm_python import COMMAND_LINE, warm_python

HERE = Path(__file__).parent
INTEGRATION = HERE.parent
ROOT = INTEGRATION.parents[1]
KEY = "the-key-of-ann-0123456789"
PYTHON = warm_python(*COMMAND_LINE)

pytestmark = pytest.mark.slow


@contextmanager
def serving(folder: Path, environment: dict[str, str], *options: str):
    words = ["-m", "memagent_openai_server", "--store", folder / "store.sqlite", *options]
    with http_process(*words, log=folder / "log", env=environment) as (url, process):
        yield process, url


def test_the_curl_line_of_the_readme_works_against_the_built_in_reader(tmp_path, environment):
    readme = (INTEGRATION / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```sh\n(curl .*?)```", readme, re.DOTALL)
    with serving(tmp_path, environment) as (_, url):
        command = block.replace("http://localhost:8080", url)
        done = subprocess.run(
            ["bash", "-euc", command], check=True, capture_output=True, cwd=ROOT, timeout=120
        )

    completion = json.loads(done.stdout)
    assert completion["choices"][0]["message"]["content"] == "The vault opens at 6:40."


def test_an_sdk_with_a_key_talks_to_it_and_the_log_has_no_key(tmp_path, environment):
    with serving(tmp_path, {**environment, "MEMAGENT_API_KEYS": f"ann {KEY}"}) as (process, url):
        with OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
            client.models.list()
        process.terminate()
        assert process.wait(120) == 0

    lines = (tmp_path / "log").read_text().splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    assert records[0]["event"] == "starting"
    assert any(record.get("tenant") == "ann" for record in records)
    assert KEY not in "\n".join(lines)


def test_the_chats_of_the_readme_are_remembered_over_a_restart(redis, tmp_path, environment):
    readme = (INTEGRATION / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```sh\n(say\(\) .*?)```", readme, re.DOTALL)
    define, chats = block.partition("; }\n")[::2]
    first, *others = chats.splitlines()
    said = []
    for lines in ([first], others):
        with serving(tmp_path, environment, "--remember", "--store", redis.url) as (process, url):
            command = "\n".join([f"{define}; }}", *lines])
            command = command.replace("http://localhost:8080", url)
            command = command.replace("gpt-4o", "extractive").replace("memories.sqlite", redis.url)
            path = f"{Path(sys.executable).parent}:{environment['PATH']}"
            env = {**environment, "PATH": path}
            shell = ["bash", "-euc", command]
            done = subprocess.run(shell, check=True, capture_output=True, env=env)
            said.append(done.stdout.decode())
            process.terminate()
            assert process.wait(120) == 0

    answer, end = json.JSONDecoder().raw_decode(said[1])
    assert "quokkas" not in said[0]
    assert "I breed quokkas in Hobart." in answer["choices"][0]["message"]["content"]
    assert "I breed quokkas in Hobart." in said[1][end:]
    assert "quokkas" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_reading_ended_by_a_signal_goes_on(tmp_path, environment, upstream, asked, needle, how):
    options = ["--model", "openai:small", "--base-url", upstream.base_url]
    for field in ("chunk_tokens=400", "memory_tokens=100", "answer_tokens=100"):
        options += ["--set", field]
    upstream.models = [{"id": "small", "max_model_len": 2048}]
    reply, seen = upstream.reply, []

    def slow(body):
        seen.append(json.dumps(body["messages"]))
        time.sleep(0.1)
        return reply(body)

    upstream.reply = slow
    with serving(tmp_path, environment, *options) as (process, url):
        client = OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        stream = client.chat.completions.create(model="small", messages=asked(), stream=True)
        with pytest.raises((APIError, httpx.HTTPError)):
            for _ in stream:
                if len(seen) > 6:
                    process.send_signal(how)
        client.close()
        assert process.wait(120) in (0, -how)
    before = len(seen)
    with serving(tmp_path, environment, *options) as (_, url):
        with OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
            completion = client.chat.completions.create(model="small", messages=asked())

    assert completion.choices[0].message.content == needle
    assert len(seen) - before + 6 <= len(set(seen)) + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "Without keys"),
        (["--keys", "/nowhere/keys"], "cannot be read"),
        (["--models", "/nowhere/models.toml"], "cannot be read"),
        (["--base-url", "http://localhost:1/v1"], "--base-url needs a model"),
        (["--model", "nobody:knows"], "nobody"),
        (["--port", "TAKEN"], "cannot be listened on"),
        (["--store", "/proc/nowhere/store.sqlite"], "cannot be used"),
        (["--model", "openai:small", "--base-url", "URL"], "Lower chunk_tokens"),
        (["--model", "openai:large", "--base-url", "URL"], "it serves small"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(environment, upstream, options, message):
    upstream.models = [{"id": "small", "max_model_len": 4096, "owned_by": "vllm"}]
    command = [sys.executable, "-m", "memagent_openai_server", "--store", "none", *options]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = {"TAKEN": taken.getsockname()[1], "URL": upstream.base_url}
        done = PYTHON.run([here.get(word, word) for word in command], env=environment)

    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]
