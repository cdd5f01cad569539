"""A server of ours as a user starts it: a process that answers on a free port."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from servers.redis_server import free_port, wait_until
from servers.warm_python import COMMAND_LINE, DEVNULL, WarmProcess, warm_python


def is_healthy(url: str, *, only: bool = True) -> bool:
    """Whether a server answers with a success; unless `only` that counts, with any status."""
    try:
        found = httpx.get(url, timeout=5)
    except httpx.HTTPError:
        return False
    return found.is_success or not only


@contextmanager
def http_process(
    *words: object, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[tuple[str, WarmProcess]]:
    """Run Python with these words and a port; yield its URL and the process, which ends at last."""
    port = free_port()
    url, command = f"http://127.0.0.1:{port}", [sys.executable, *words, "--port", port]
    with log.open("ab") as output:
        streams = {"stdin": DEVNULL, "stdout": output, "stderr": output}
        process = warm_python(*COMMAND_LINE).start(command, env=env, **streams)

    def is_up() -> bool:
        assert process.poll() is None, log.read_text()
        return is_healthy(url, only=False)

    try:
        wait_until(is_up, " ".join(map(str, words)), seconds=240)
        yield url, process
    finally:
        process.terminate()
        process.wait(120)
