from __future__ import annotations

import os
import subprocess
import sys

import httpx
import pytest
from inspecting import TOKEN
from servers.redis_server import free_port, wait_until
from typer.testing import CliRunner

from memagent_inspector.command import app


def run(*words, **env):
    return CliRunner().invoke(app, list(map(str, words)), env=env)


def test_it_does_not_listen_for_others_without_a_token(tmp_path, monkeypatch):
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: pytest.fail("it listens"))

    done = run("--store", tmp_path / "m.sqlite", "--host", "0.0.0.0", MEMAGENT_INSPECT_TOKEN="")

    assert done.exit_code == 1
    assert "MEMAGENT_INSPECT_TOKEN" in done.output


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (["--store", "none"], {}, "There are no memories"),
        (["--root", "nowhere"], {}, "--root nowhere cannot be read"),
        ([], {"MEMAGENT_INSPECT_TOKEN": "short"}, "needs 16 characters"),
    ],
)
def test_what_cannot_work_is_said_in_a_line(tmp_path, words, env, said):
    done = run(*(words or []), **{"MEMAGENT_STORE": str(tmp_path / "m.sqlite"), **env})

    assert done.exit_code == 1
    assert said in done.output


@pytest.mark.slow
@pytest.mark.parametrize("token", ["", TOKEN])
def test_it_serves_until_it_is_told_to_stop(tmp_path, token):
    port = free_port()
    words = ["--store", tmp_path / "m.sqlite", "--port", port]
    code = "from memagent_inspector.command import app; app()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        env={**os.environ, "MEMAGENT_INSPECT_TOKEN": token},
        stderr=subprocess.PIPE,
        text=True,
    )
    url = f"http://127.0.0.1:{port}/"

    def answers() -> bool:
        assert process.poll() is None, process.stderr.read()
        try:
            return bool(httpx.get(url).status_code)
        except httpx.HTTPError:
            return False

    try:
        wait_until(answers, "memagent inspect", seconds=240)
        found = httpx.get(url)
        assert found.status_code == (401 if token else 200)
        assert "server" not in found.headers
        assert httpx.get(f"{url}memory?of=%1b[31m").status_code in {401, 404}
    finally:
        process.terminate()
        _, said = process.communicate(timeout=120)
    assert said == f"memagent: the inspector is at http://127.0.0.1:{port}\n"
