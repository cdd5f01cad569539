"""`memagent serve`, as a person starts it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from openai import APIError, OpenAI
from servers.redis_server import RedisServer, free_port, wait_until
from servers.warm_python import SERVERS, warm_python

HERE = Path(__file__).parent
INTEGRATION = HERE.parent
ROOT = INTEGRATION.parents[1]
KEY = "the-key-of-ann-0123456789"
PYTHON = warm_python(*SERVERS)

pytestmark = pytest.mark.slow


@contextmanager
def serving(folder: Path, environment: dict[str, str], *options: str):
    """The command in a process of its own; yields the process and its port."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "memagent_openai_server"]
    command += ["--port", str(port), "--store", str(folder / "store.sqlite"), *options]
    with (folder / "log").open("ab") as log:
        process = PYTHON.start(command, stderr=log, env=environment)

    def answers():
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health").is_success
        except httpx.HTTPError:
            return False

    try:
        wait_until(answers, "memagent serve", seconds=240)
        yield process, port
    finally:
        process.kill()


def test_the_curl_line_of_the_readme_works_against_the_built_in_reader(tmp_path, environment):
    readme = (INTEGRATION / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```sh\n(curl .*?)```", readme, re.DOTALL)
    with serving(tmp_path, environment) as (_, port):
        command = block.replace("localhost:8080", f"127.0.0.1:{port}")
        done = subprocess.run(
            ["bash", "-euc", command], check=True, capture_output=True, cwd=ROOT, timeout=120
        )

    completion = json.loads(done.stdout)
    assert completion["choices"][0]["message"]["content"] == "The vault opens at 6:40."


def test_an_sdk_with_a_key_talks_to_it_and_the_log_has_no_key(tmp_path, environment):
    with serving(tmp_path, {**environment, "MEMAGENT_API_KEYS": f"ann {KEY}"}) as (process, port):
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY)
        client.models.list()
        client.close()
        process.terminate()
        assert process.wait(120) == 0

    lines = (tmp_path / "log").read_text().splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    assert records[0]["event"] == "starting"
    assert any(record.get("tenant") == "ann" for record in records)
    assert KEY not in "\n".join(lines)


@pytest.fixture
def redis(tmp_path):
    server = RedisServer(tmp_path)
    yield server
    server.kill()


def test_the_chats_of_the_readme_are_remembered_over_a_restart(redis, tmp_path, environment):
    readme = (INTEGRATION / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```sh\n(say\(\) .*?)```", readme, re.DOTALL)
    define, chats = block.partition("; }\n")[::2]
    first, *others = chats.splitlines()
    said = []
    for lines in ([first], others):
        with serving(tmp_path, environment, "--remember", "--store", redis.url) as (process, port):
            command = "\n".join([f"{define}; }}", *lines])
            command = command.replace("localhost:8080", f"127.0.0.1:{port}")
            command = command.replace("gpt-4o", "extractive").replace("memories.sqlite", redis.url)
            path = f"{Path(sys.executable).parent}:{environment['PATH']}"
            done = subprocess.run(
                ["bash", "-euc", command],
                check=True,
                capture_output=True,
                env={**environment, "PATH": path},
            )
            said.append(done.stdout.decode())
            process.terminate()
            assert process.wait(120) == 0

    answer, end = json.JSONDecoder().raw_decode(said[1])
    assert "quokkas" not in said[0]
    assert "I breed quokkas in Hobart." in answer["choices"][0]["message"]["content"]
    assert "I breed quokkas in Hobart." in said[1][end:]
    assert "quokkas" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_reading_that_a_signal_ended_goes_on_in_the_next_process(
    tmp_path, environment, upstream, asked, needle, how
):
    options = ["--model", "openai:small", "--base-url", upstream.base_url]
    options += ["--chunk-tokens", "400", "--memory-tokens", "100", "--answer-tokens", "100"]
    upstream.models = [{"id": "small", "max_model_len": 2048}]
    reply, seen = upstream.reply, []

    def slow(body):
        seen.append(json.dumps(body["messages"]))
        time.sleep(0.1)
        return reply(body)

    upstream.reply = slow
    with serving(tmp_path, environment, *options) as (process, port):
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0)
        stream = client.chat.completions.create(model="small", messages=asked(), stream=True)
        with pytest.raises((APIError, httpx.HTTPError)):
            for _ in stream:
                if len(seen) > 6:
                    process.send_signal(how)
        client.close()
        assert process.wait(120) in (0, -how)
    before = len(seen)
    with serving(tmp_path, environment, *options) as (_, port):
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0)
        completion = client.chat.completions.create(model="small", messages=asked())
        client.close()

    assert completion.choices[0].message.content == needle
    assert len(seen) - before + 6 <= len(set(seen)) + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "Without keys"),
        (["--keys", "/nowhere/keys"], "cannot be read"),
        (["--base-url", "http://localhost:1/v1"], "--base-url needs a model"),
        (["--model", "nobody:knows"], "nobody"),
        (["--store", "/proc/nowhere/store.sqlite"], "cannot be used"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(environment, options, message):
    command = [sys.executable, "-W", "ignore", "-m", "memagent_openai_server", *options]

    done = PYTHON.run(command, env=environment)

    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("model", "message"), [("small", "Lower chunk_tokens"), ("large", "it serves small")]
)
def test_a_model_that_does_not_fit_or_is_not_there_is_said_before_the_first_request(
    environment, upstream, model, message
):
    upstream.models = [{"id": "small", "max_model_len": 4096, "owned_by": "vllm"}]
    command = [sys.executable, "-W", "ignore", "-m", "memagent_openai_server", "--store", "none"]
    command += ["--model", f"openai:{model}", "--base-url", upstream.base_url]

    done = PYTHON.run(command, env=environment)

    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]


def test_a_file_of_models_is_served_and_the_log_names_what_is_not_known_of_them(
    tmp_path, environment, upstream
):
    upstream.models = [{"id": "small"}]
    file = tmp_path / "models.toml"
    file.write_text(f"""
[small]
model = "openai:small"
base_url = "{upstream.base_url}"

[quotes]
model = "extractive"
""")
    with serving(tmp_path, environment, "--models", str(file)) as (_, port):
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x")
        listed = [card.id for card in client.models.list().data]
        client.close()

    assert listed == ["small", "quotes"]
    record = json.loads((tmp_path / "log").read_text().splitlines()[0])
    assert (record["level"], record["model"]) == ("warning", "small")
    assert "--window" in record["event"]


def test_a_port_that_is_taken_ends_it(tmp_path, environment):
    with serving(tmp_path, environment) as (_, port):
        command = [sys.executable, "-W", "ignore", "-m", "memagent_openai_server"]
        done = PYTHON.run([*command, "--port", port, "--store", "none"], env=environment)

    assert done.returncode != 0


NPM = HERE / "npm"


@pytest.fixture(scope="module")
def sdk(tmp_path_factory):
    """A folder with the npm SDK of the version that `package.json` names."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node is not installed")
    folder = tmp_path_factory.mktemp("npm")
    for file in ("package.json", "client.mjs"):
        shutil.copy(NPM / file, folder)
    found = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    if found.returncode:
        pytest.skip(f"npm could not install the SDK: {found.stderr[-300:]}")
    return folder


def test_the_npm_sdk_asks_streams_and_goes_on(sdk, behind, upstream, asked, needle):
    done = subprocess.run(
        ["node", "client.mjs", f"{behind.url}/v1"],
        input=json.dumps({"messages": asked()}),
        cwd=sdk,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["short"] == "Nothing was found."
    assert found["long"] == found["streamed"] == found["parsed"] == needle
    assert found["thoughts"] > 10
    assert found["response"] == needle
    assert found["missing"] == 404
    assert found["stored"] == 400
    assert found["memory"] == found["header"]
    assert upstream.requests[-1]["model"] == "small"
