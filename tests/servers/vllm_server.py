"""A real vLLM behind its OpenAI-compatible server, in a process group of its own.

with VLLMServer(tiny_model(tmp_path / "tiny"), tmp_path / "vllm.log") as server:
    ChatEndpoint(model=server.name, base_url=server.base_url)
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from servers.redis_server import free_port

_LONGEST_START = 240.0
"""Seconds; PyTorch alone takes several on a busy machine."""


class VLLMServer:
    """Serves a model folder by its name; runs in this interpreter's environment.

    A start takes about 30 s on two cores, and the first completion another 8 s.

    Args:
        model: folder of the model.
        log: file that the server's output is added to.
        options: more of its command line.
        port: where it listens; a free one by default, and the same after a restart.

    Attributes:
        name: what requests call the model.
    """

    def __init__(self, model: Path, log: Path, *options: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.name = model.name
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        self._command += ["--model", str(model), "--served-model-name", self.name]
        self._command += ["--host", "127.0.0.1", "--port", str(self.port)]
        # Eager: compiling takes longer than most tests run.
        self._command += ["--dtype", "float32", "--enforce-eager", *options]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self, *, wait: bool = True) -> None:
        environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", **os.environ}
        environment["VLLM_SERVER_DEV_MODE"] = "1"  # lets tests hand it new weights
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # so that the engine's processes can be killed with it
                env=environment,
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Return once it answers."""
        give_up = time.monotonic() + _LONGEST_START
        while not self._is_healthy():
            if self._process is None or self._process.poll() is not None:
                message = f"vLLM ended: {self._log.read_text()[-4000:]}"
                raise RuntimeError(message)
            if time.monotonic() > give_up:
                message = f"vLLM did not start: {self._log.read_text()[-4000:]}"
                raise TimeoutError(message)
            time.sleep(0.1)

    def kill(self) -> None:
        """End it and its engine's processes as a crash would."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def _is_healthy(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


@contextmanager
def vllm_server(
    model: Path, log: Path, *options: str, port: int | None = None
) -> Iterator[VLLMServer]:
    """A started server that is gone at the end; arguments are those of `VLLMServer`."""
    server = VLLMServer(model, log, *options, port=port)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@functools.cache
def fork_engines() -> None:
    """Have the engines of this process forked from one that has imported vLLM.

    vLLM has each spawned: on a CPU, its imports take longer than all else that an engine begins
    with.
    """
    from vllm.v1.engine import utils

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.qwen2"]
    )
    utils.get_mp_context = lambda: context
