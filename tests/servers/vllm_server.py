"""A real vLLM behind its OpenAI-compatible server, in a process group of its own.

with VLLMServer(tiny_model(tmp_path / "tiny"), tmp_path / "vllm.log") as server:
    ChatEndpoint(model=server.name, base_url=server.base_url)
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from servers.http_process import is_healthy
from servers.redis_server import free_port, wait_until

_LONGEST_START = 240.0
"""Seconds; PyTorch alone takes several on a busy machine."""


class VLLMServer:
    """Serves a model folder by its name, in this interpreter's environment."""

    def __init__(self, model: Path, log: Path, *options: str) -> None:
        self.port = free_port()
        self.name = model.name
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._options = ["--model", str(model), "--served-model-name", self.name]
        self._options += ["--host", "127.0.0.1", "--port", str(self.port)]
        # Eager: compiling takes longer than most tests run.
        self._options += ["--dtype", "float32", "--enforce-eager", *options]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", **os.environ}
        environment["VLLM_SERVER_DEV_MODE"] = "1"  # lets tests hand it new weights
        wait_until(self._may_listen, f"port {self.port}", _LONGEST_START)
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._is_ready, f"vLLM; see {self._log}", _LONGEST_START)

    def kill(self) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _may_listen(self) -> bool:
        """Whether nobody listens: a killed engine has the server's socket until it is all gone."""
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", self.port))
            return True
        return False

    def _is_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            message = f"vLLM ended: {self._log.read_text()[-4000:]}"
            raise RuntimeError(message)
        return is_healthy(f"http://127.0.0.1:{self.port}/health")


@contextmanager
def vllm_server(model: Path, log: Path, *options: str) -> Iterator[VLLMServer]:
    """A started server that is gone at the end; arguments are those of `VLLMServer`."""
    server = VLLMServer(model, log, *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
