"""A real vLLM behind its OpenAI-compatible server, in a process group of its own.

It is forked from a process that has imported vLLM, and so are engines after `fork_engines`: on a
CPU, the imports take longer than all else that either begins with.

with VLLMServer(tiny_model(tmp_path / "tiny"), tmp_path / "vllm.log") as server:
    ChatEndpoint(model=server.name, base_url=server.base_url)
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import runpy
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from servers.http_process import is_healthy
from servers.redis_server import free_port, wait_until

_LONGEST_START = 240.0
"""Seconds; PyTorch alone takes several on a busy machine."""


class VLLMServer:
    """Serves a model folder by its name; runs in this interpreter's environment.

    Args:
        model: folder of the model.
        log: file that the server's output is added to.
        options: more of its command line.

    Attributes:
        name: what requests call the model.
    """

    def __init__(self, model: Path, log: Path, *options: str) -> None:
        self.port = free_port()
        self.name = model.name
        self._log = log
        self._process: ForkServerProcess | None = None
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
        self._process = _forking().Process(
            target=_serve, args=(self._options, environment, self._log)
        )
        self._process.start()
        wait_until(self._is_ready, f"vLLM; see {self._log}", _LONGEST_START)

    def kill(self) -> None:
        """End it and its engine's processes as a crash would."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # it may have no group yet
        self._process.join()
        self._process = None

    def _may_listen(self) -> bool:
        """Whether nobody listens: a killed engine has the server's socket until it is all gone."""
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", self.port))
            return True
        return False

    def _is_ready(self) -> bool:
        if self._process is None or not self._process.is_alive():
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


@functools.cache
def _forking() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "vllm.entrypoints.launchers.api_server.entry",
            "vllm.v1.engine.async_llm",
            "vllm.v1.engine.core",
            "vllm.v1.worker.cpu_worker",
            "vllm.model_executor.models.qwen2",
            "servers.frozen",  # an engine looks for garbage seven times, for 0.3 s each
        ]
    )
    return context


def _serve(options: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """Become the server, as its command line starts it."""
    os.setsid()  # so that the engine's processes can be killed with it
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from huggingface_hub import constants
    from vllm.v1.engine import utils

    constants.HF_HUB_OFFLINE = True  # what was imported has not seen the environment
    utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    sys.argv[1:] = options
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


@functools.cache
def fork_engines() -> None:
    """Have the engines of this process forked too: vLLM has each spawned."""
    from vllm.v1.engine import utils

    utils.get_mp_context = _forking
    gc.freeze()
