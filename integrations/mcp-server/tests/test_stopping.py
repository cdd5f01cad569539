"""SIGTERM with a reading under way: it ends, what was read is kept, the next process goes on."""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import anyio
import psutil
import pytest
from fixed_readers import numbered
from mcp import Client, MCPError
from mcp_serving import COMMAND, INITIALIZE, PYTHON, connected, note, served
from servers.redis_server import wait_until
from servers.warm_python import PIPE

pytestmark = pytest.mark.slow

ASKED = {"question": "What do the lines say?", "source": "lines.txt"}


async def test_sigterm_ends_a_reading_which_the_next_process_goes_on_with(
    transport, mode, gated, tmp_path
):
    (tmp_path / "lines.txt").write_text(numbered(120))
    model = ["--model", "openai:small", "--base-url", gated.base_url, "--set", "chunk_tokens=250"]
    store = ["--root", tmp_path / "lines.txt", "--store", tmp_path / "memories.sqlite"]
    options, log, first, second, told = [*store, *model], tmp_path / "log", [], [], []

    async with served(transport, log, *options) as (found, process):

        async def terminate():
            await anyio.to_thread.run_sync(gated.reached.wait)
            await until(lambda: len(first) == 3)
            os.kill(process(), signal.SIGTERM)

        async with anyio.create_task_group() as group, Client(found, mode=mode) as client:
            group.start_soon(terminate)
            try:
                ended = await client.call_tool("read", ASKED, progress_callback=note(first))
                told.append(ended.content[0].text)
            except MCPError as error:
                told.append(str(error))
            pid = process()
            await until(lambda: gone(pid))
    gated.gate.set()
    async with connected(transport, mode, log, *options) as client:
        result = await client.call_tool("read", ASKED, progress_callback=note(second))

    assert len(first) == 3
    assert second[0] > first[-1]
    assert len(gated.requests) <= len(first) + len(second) + 3
    assert result.structured_content["coverage"] == 1
    answers = ["call the same tool again"] + ["closed"] * (transport == "stdio")
    assert any(answer in told[0].lower() for answer in answers)
    assert "Traceback" not in log.read_text()
    assert "had not ended" not in log.read_text()


async def test_sigterm_ends_a_process_one_of_whose_threads_hangs(options, tmp_path):
    hang = (
        "import pathlib, sys, time; from memagent_graph.cli import main; "
        "from memagent_mcp_server import Roots; "
        f"Roots.open = lambda *_: (pathlib.Path({str(tmp_path / 'hangs')!r}).touch(), "
        "time.sleep(3600)); main()"
    )
    command = [sys.executable, "-c", hang, "mcp"]

    async with (
        served("http", tmp_path / "log", *options, command=command) as (found, process),
        anyio.create_task_group() as group,
        Client(found) as client,
    ):
        asked = {"question": "When?", "source": "books"}
        group.start_soon(partial(client.call_tool, "read", asked))
        await until((tmp_path / "hangs").exists)
        pid = process()
        os.kill(pid, signal.SIGTERM)
        await until(lambda: gone(pid))
        group.cancel_scope.cancel()


async def until(holds):
    await anyio.to_thread.run_sync(lambda: wait_until(holds, "it", seconds=240))


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
@pytest.mark.parametrize("sink", ["full device", "closed pipe"])
@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_takes_no_answers_ends_the_server_in_one_line(leaves, sink, tmp_path):
    unread, pipe = os.pipe()
    os.close(unread)
    full = os.open("/dev/full", os.O_WRONLY)

    command = [*COMMAND, "--store", "none", "--root", tmp_path]
    env = {**os.environ, "MEMAGENT_MODEL": "extractive"}
    stdout = full if sink == "full device" else pipe
    process = PYTHON.start(command, stdin=PIPE, stdout=stdout, stderr=PIPE, env=env)
    os.close(full)
    os.close(pipe)
    try:
        process.stdin.write(json.dumps(INITIALIZE) + "\n")
        process.stdin.flush()
        if leaves:
            process.stdin.close()

        assert process.wait(100) == 1
        (line,) = process.stderr.read().splitlines()
    finally:
        process.kill()
    assert line.startswith("memagent: error: an answer could not be written")
