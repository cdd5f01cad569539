import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from langgraph_sdk import get_client, get_sync_client
from servers.http_process import is_healthy
from servers.redis_server import free_port, wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "langgraph_server"
TEXT = "Filler. " * 9000 + "The vault opens at 6:40."
ASKED = {"question": "When does the vault open?", "document": TEXT}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("served"), free_port()
    for name in ("graph.py", "langgraph.json"):
        shutil.copy(EXAMPLE / name, folder)  # the server writes where it runs
    command = [str(Path(sys.executable).parent / "langgraph"), "dev"]
    command += ["--no-browser", "--no-reload", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def answers():
        assert process.poll() is None, (folder / "log").read_text()
        return is_healthy(f"{url}/ok")

    try:
        wait_until(answers, "langgraph dev", seconds=240)
        yield url
    finally:
        process.terminate()
        process.wait(240)


def test_a_client_asks_a_long_text(url):
    with get_sync_client(url=url) as client:
        thread = client.threads.create()
        out = client.runs.wait(thread["thread_id"], "memagent", input=ASKED)

    assert out["answer"] == "The vault opens at 6:40."
    assert out["evidence"][0]["start"] == TEXT.index("The vault")
    assert set(out) == {"answer", "memory", "evidence", "usage"}


async def test_a_client_watches_the_reading_and_asking_again_reads_nothing(url):
    asked = {**ASKED, "question": "At what time does the vault open?"}

    async def watched(client):
        parts = client.runs.stream(None, "memagent", input=asked, stream_mode="custom")
        return [part.data["event"] async for part in parts if part.event == "custom"]

    async with get_client(url=url) as client:
        first, second = await watched(client), await watched(client)

    assert first.count("chunk") == 3
    assert "chunk" not in second


def test_the_server_opens_no_files_for_its_clients(url):
    asked = {"question": "Who is root?", "document": {"path": "/etc/passwd"}}

    with get_sync_client(url=url) as client, pytest.raises(Exception, match="SourceError"):
        client.runs.wait(None, "memagent", input=asked)
