from __future__ import annotations

import os
import socket
import subprocess
import sys

import httpx
import pytest
from servers.mirror import Mirror

from memagent_graph.cli.evaluate import BENCHMARKS, fetch_benchmark
from memagent_graph.errors import ConfigurationError, SourceError

CONTENT = b"[" + b'{"row": 1}, ' * 2_000 + b'{"row": 2}]'
HUB = sorted(name for name, origin in BENCHMARKS.items() if not origin.place.endswith("/"))
WEB = sorted({*BENCHMARKS} - {*HUB})


@pytest.fixture
def mirror():
    server = Mirror(CONTENT)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def no_request_leaves_the_machine(monkeypatch):
    look_up, away = socket.getaddrinfo, []

    def look_up_here(host, *rest, **more):
        if host != "127.0.0.1":
            away.append(host)
            raise socket.gaierror(socket.EAI_NONAME, "not here")
        return look_up(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up_here)
    yield
    assert away == []


def names(folder):
    """All files of a folder."""
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", HUB)
def test_files_of_the_hub_come_from_its_mirror(mirror, tmp_path, name):
    origin = BENCHMARKS[name]

    files = fetch_benchmark(name, tmp_path / "new" / "folder", endpoint=f"{mirror.url}/")

    assert files == [tmp_path / "new" / "folder" / file for file in origin.files]
    assert {file.read_bytes() for file in files} == {CONTENT}
    place = f"/datasets/{origin.place}/resolve/main"
    assert mirror.requests == [("GET", f"{place}/{file}") for file in origin.files]


@pytest.mark.parametrize("name", WEB)
def test_other_files_come_from_a_mirror_under_the_name_of_their_host(mirror, tmp_path, name):
    origin = BENCHMARKS[name]

    files = fetch_benchmark(name, tmp_path / "new" / "folder", endpoint=f"{mirror.url}/")

    assert files == [tmp_path / "new" / "folder" / file for file in origin.files]
    assert {file.read_bytes() for file in files} == {CONTENT}
    place = origin.place.partition("://")[2]
    assert mirror.requests == [("GET", f"/{place}{file}") for file in origin.files]


def test_one_file_of_a_benchmark_can_be_named(mirror, tmp_path):
    fetch_benchmark("ruler_hqa/eval_50.json", tmp_path, endpoint=mirror.url)
    fetch_benchmark("beam/100K-00000-of-00001.parquet", tmp_path, endpoint=mirror.url)

    assert names(tmp_path) == {"eval_50.json", "data/100K-00000-of-00001.parquet"}


def test_no_token_is_sent_to_a_mirror(mirror, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    fetch_benchmark("ruler_hqa/eval_50.json", tmp_path, endpoint=mirror.url)
    fetch_benchmark("locomo", tmp_path, endpoint=mirror.url)

    assert len(mirror.headers) == 2
    assert not any("authorization" in headers for headers in mirror.headers)


@pytest.mark.parametrize("name", ["ruler_hqa/eval_50.json", "locomo"])
def test_a_file_that_is_there_is_kept_and_not_asked_for(mirror, tmp_path, name):
    (file,) = fetch_benchmark(name, tmp_path, endpoint=mirror.url)
    file.write_text("mine")
    mirror.requests.clear()

    assert fetch_benchmark(name, tmp_path, endpoint=mirror.url) == [file]

    assert file.read_text() == "mine"
    assert mirror.requests == []


@pytest.mark.parametrize("name", ["ruler_hqa/eval_50.json", "locomo"])
@pytest.mark.parametrize("order", [404, 403, 401])
def test_a_refusal_names_the_url_and_what_to_do(mirror, tmp_path, name, order):
    mirror.script = {".json": order}

    with pytest.raises(SourceError, match=rf"{mirror.url}/.*\.json could not.*save it as .*json\."):
        fetch_benchmark(name, tmp_path, endpoint=mirror.url)

    assert names(tmp_path) == set()


@pytest.mark.parametrize("name", ["ruler_hqa/eval_50.json", "locomo"])
def test_a_download_that_is_cut_off_leaves_nothing(mirror, tmp_path, name):
    mirror.script = {".json": "cut"}

    with pytest.raises(SourceError, match="could not be downloaded"):
        fetch_benchmark(name, tmp_path, endpoint=mirror.url)

    assert names(tmp_path) == set()


def test_an_interruption_leaves_nothing(mirror, tmp_path, monkeypatch):
    def interrupt(response):
        yield CONTENT[:9]
        raise KeyboardInterrupt

    monkeypatch.setattr(httpx.Response, "iter_bytes", interrupt)

    with pytest.raises(KeyboardInterrupt):
        fetch_benchmark("locomo", tmp_path, endpoint=mirror.url)

    assert [*tmp_path.iterdir()] == []


def test_the_environment_names_a_mirror_of_the_hub(mirror, tmp_path):
    code = (
        "from pathlib import Path\n"
        "from memagent_graph.cli.evaluate import fetch_benchmark\n"
        f"fetch_benchmark('ruler_hqa/eval_50.json', Path({str(tmp_path)!r}))\n"
    )

    named = {**os.environ, "HF_ENDPOINT": mirror.url}
    subprocess.run([sys.executable, "-c", code], check=True, env=named)

    assert (tmp_path / "eval_50.json").read_bytes() == CONTENT
    assert {path.rpartition("/")[2] for _, path in mirror.requests} == {"eval_50.json"}


def test_others_may_read_a_file_as_far_as_the_umask_lets_them(mirror, tmp_path):
    (file,) = fetch_benchmark("locomo", tmp_path, endpoint=mirror.url)
    (tmp_path / "plain").touch()

    assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_after_a_failure_the_same_call_fetches_what_is_missing(mirror, tmp_path):
    mirror.script = {"dev-v2.0.json": 404}
    with pytest.raises(SourceError, match="404"):
        fetch_benchmark("squad", tmp_path, endpoint=mirror.url)
    mirror.script = {}
    mirror.requests.clear()

    fetch_benchmark("squad", tmp_path, endpoint=mirror.url)

    assert [path.rpartition("/")[2] for _, path in mirror.requests] == ["dev-v2.0.json"]
    assert names(tmp_path) == {"dev-v1.1.json", "dev-v2.0.json"}


def test_an_unreachable_server_is_named_with_what_was_asked_of_it(mirror, tmp_path):
    mirror.close()

    with pytest.raises(SourceError, match=rf"{mirror.url}/raw.githubusercontent.com/.*json could"):
        fetch_benchmark("locomo", tmp_path, endpoint=mirror.url)


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(mirror, tmp_path):
    (tmp_path / "taken").write_text("a file")

    for name in ("locomo", "ruler_hqa/eval_50.json"):
        with pytest.raises(SourceError, match="taken"):
            fetch_benchmark(name, tmp_path / "taken", endpoint=mirror.url)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nix", "no benchmark 'nix'. Choose from: ruler_hqa, hotpotqa"),
        ("", "no benchmark ''"),
        ("ruler_hqa/eval_51.json", "no file 'eval_51.json'. Choose from: eval_50.json"),
        ("ruler_hqa/../../x", "no file '../../x'"),
    ],
)
def test_names_that_do_not_exist_are_refused_with_those_that_do(tmp_path, name, message):
    with pytest.raises(ConfigurationError, match=message):
        fetch_benchmark(name, tmp_path, endpoint="http://127.0.0.1:9")
