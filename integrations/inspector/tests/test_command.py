import os
import socket

import httpx
import pytest
import uvicorn
from inspecting import TOKEN
from servers.http_process import http_process
from typer.testing import CliRunner

from memagent_inspector.command import app


def run(*words, **env):
    return CliRunner().invoke(app, list(map(str, words)), env=env)


def test_it_does_not_listen_for_others_without_a_token(tmp_path, monkeypatch):
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_: pytest.fail("it listens"))

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


def test_an_address_that_is_taken_is_an_error_of_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("--store", tmp_path / "m.sqlite", "--port", port)

    assert done.exit_code == 1
    assert "the inspector is at" not in done.output
    assert done.output.count("\n") == 1
    assert f"127.0.0.1:{port} cannot be listened on (Address already in use)" in done.output


def leave_in_the_middle_of_a_form(port: int, path: str) -> None:
    place = f"127.0.0.1:{port}"
    head = f"POST {path} HTTP/1.1\r\nhost: {place}\r\norigin: http://{place}\r\n"
    kind = "content-type: application/x-www-form-urlencoded\r\ncontent-length: 2\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=240) as connection:
        connection.sendall(f"{head}{kind}expect: 100-continue\r\n\r\n".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100")  # it waits for the form
        connection.sendall(b"x")


@pytest.mark.slow
@pytest.mark.parametrize("token", ["", TOKEN])
def test_it_serves_until_it_is_told_to_stop(tmp_path, token):
    words = ("-m", "memagent_graph", "inspect", "--store", tmp_path / "m.sqlite")
    env, log = {**os.environ, "MEMAGENT_INSPECT_TOKEN": token}, tmp_path / "log"
    with http_process(*words, log=log, env=env) as (url, _):
        found = httpx.get(url)
        assert found.status_code == (401 if token else 200)
        assert "server" not in found.headers
        assert httpx.get(f"{url}/memory?of=%1b[31m").status_code in {401, 404}
        leave_in_the_middle_of_a_form(httpx.URL(url).port, "/login" if token else "/branch")

    assert log.read_text() == f"memagent: the inspector is at {url}\n"
