"""Python processes without the wait for their imports: forked from a process that has them.

python = warm_python(*COMMAND_LINE)
python.run([sys.executable, "-m", "memagent_graph", "ask", ...]).stdout

What is forked is a process of its own: pid, signals, exit code, environment, working folder and
standard streams are those that `subprocess` would give it, and its threads and exit functions end
as ever. What `run` has run then skips the teardown of the interpreter, which takes longer than most
commands; `whole_end=True` is for tests about the end. Only what Python reads when it starts (`-W`,
`PYTHONIOENCODING`, `PYTHONPATH`) has no effect.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from subprocess import DEVNULL, PIPE, CompletedProcess, TimeoutExpired

_PARTS = (
    "cli.app cli.memory conversation.users evaluation.run graph.build memory.redis memory.stores "
    "models.endpoint planning readers.extractive"
)
_OTHERS = (
    "memagent_inspector.app memagent_inspector.command memagent_mcp_server.command "
    "memagent_mcp_server.http memagent_mcp_server.server memagent_openai_server.app "
    "memagent_openai_server.cli "
    "langgraph.checkpoint.sqlite.aio langgraph.store.sqlite openai.resources rich.progress "
    "uvicorn.lifespan.on uvicorn.loops.auto uvicorn.protocols.http.auto"
)
COMMAND_LINE = (*(f"memagent_graph.{name}" for name in _PARTS.split()), *_OTHERS.split())
"""What the commands of `memagent` and the children of tests import."""

TRAINING = ("accelerate", "peft", "transformers.models.qwen2", "memagent_graph.rl.training")
"""What children that train import: seconds of it."""


@functools.cache
def warm_python(*imports: str) -> WarmPython:
    """The one process of this test session that has imported these modules."""
    return WarmPython(imports)


class WarmPython:
    """A process that forks others; it starts with the first of them and ends with this one."""

    def __init__(self, imports: Sequence[str]) -> None:
        self._imports = imports

    @functools.cached_property
    def _channel(self) -> socket.socket:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, str(number), *self._imports],
                pass_fds=[number],
                env={**os.environ, "PYTHONPATH": _paths()},
                start_new_session=True,  # an interrupt of the terminal is for the tests
            )
        return mine

    def start(
        self,
        command: Sequence[object],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        whole_end: bool = True,
    ) -> WarmProcess:
        """As `subprocess.Popen` does, with text in its pipes; `stdin` may be a file or a pipe."""
        arguments = [str(word) for word in command if word != sys.executable]
        if arguments[0] == "-W":
            del arguments[:2]
        request = {"arguments": arguments, "folder": str(cwd or Path.cwd())}
        request["whole end"] = whole_end
        request["environment"] = dict(os.environ if env is None else env)
        status, theirs = os.pipe()
        given, mine = [theirs], {}
        for number, wanted in enumerate((stdin, stdout, stderr)):
            if wanted == PIPE:
                reading, writing = os.pipe()
                given.append(writing if number else reading)
                mine[number] = reading if number else writing
            elif wanted == DEVNULL:
                given.append(os.open(os.devnull, os.O_RDWR))
            else:
                given.append(os.dup(number if wanted is None else _fileno(wanted)))
        socket.send_fds(self._channel, [json.dumps(request).encode()], given)
        for descriptor in given:
            os.close(descriptor)
        return WarmProcess(arguments, status, mine)

    def run(
        self,
        command: Sequence[object],
        *,
        input: str = "",
        check: bool = False,
        timeout: float = 120,
        whole_end: bool = False,
        **options,
    ) -> CompletedProcess[str]:
        """As `subprocess.run` does with `capture_output` and `text`."""
        with tempfile.TemporaryFile("w+") as given:
            given.write(input)
            given.seek(0)
            options = {"stdin": given, "stdout": PIPE, "stderr": PIPE, **options}
            process = self.start(command, whole_end=whole_end, **options)
        try:
            stdout, stderr = process.communicate(timeout)
        finally:
            process.kill()
        done = CompletedProcess(process.args, process.returncode, stdout, stderr)
        if check:
            done.check_returncode()
        return done


class WarmProcess:
    """A forked process, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: list[str], status: int, pipes: dict[int, int]) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self._status = os.fdopen(status, "rb", buffering=0)
        self.stdin = os.fdopen(pipes[0], "w") if 0 in pipes else None
        self.stdout = os.fdopen(pipes[1]) if 1 in pipes else None
        self.stderr = os.fdopen(pipes[2]) if 2 in pipes else None
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        with contextlib.suppress(TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def wait_for_lines(self, log: Path, lines: int, seconds: float = 600.0) -> None:
        """Return as soon as a file has so many lines, or the process or the time has ended."""
        give_up, found, seen = time.monotonic() + seconds, 0, 0
        while found < lines and self.poll() is None and time.monotonic() < give_up:
            time.sleep(0.0005)
            if log.exists() and log.stat().st_size > seen:
                with log.open("rb") as file:
                    file.seek(seen)
                    new = file.read()
                found, seen = found + new.count(b"\n"), seen + len(new)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Close standard input, read all output, and wait for the end."""
        if self.stdin is not None:
            self.stdin.close()
        with ThreadPoolExecutor(2) as pool:
            reading = [pool.submit(_rest, stream) for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except BaseException:  # a test's own timeout too: else the readers wait for ever
                self.kill()
                raise
        return reading[0].result(), reading[1].result()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it may have ended, and not said so yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it, and close its pipes."""
        self.send_signal(signal.SIGKILL)
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _rest(stream: io.TextIOBase | None) -> str:
    if stream is None:
        return ""
    with stream:
        return stream.read()


def _fileno(stream: int | io.IOBase) -> int:
    return stream if isinstance(stream, int) else stream.fileno()


def _paths() -> str:
    here = Path(__file__).parents[1]
    return os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])


def _serve(channel: socket.socket) -> dict:
    """Fork for each request; returns in the child, with its request."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes in between leave no zombies
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 4)
        if not message:
            os._exit(0)
        if not os.fork():
            channel.close()
            status, *streams = descriptors
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child = os.fork()
            if not child:
                os.close(status)
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                return json.loads(message)
            for stream in streams:
                os.close(stream)
            os.write(status, b"%d\n" % child)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os.write(status, b"%d\n" % code)
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(request: dict) -> None:
    """Take on what `Popen` and the start of an interpreter would set."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the streams of a whole process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    sys.argv = request["arguments"]


def _skip_teardown(code: int) -> None:
    """End without the teardown of the interpreter; return if output cannot be written."""
    threading._shutdown()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    import runpy

    _channel = socket.socket(fileno=int(sys.argv[1]))
    for _name in sys.argv[2:]:
        import_module(_name)
    gc.collect()
    gc.freeze()  # what is imported stays shared with the forked
    _request = _serve(_channel)
    _become(_request)
    # At the top of the interpreter, so that errors and interrupts end it as they always do.
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            sys.path[0] = str(Path.cwd())
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        elif sys.argv[0] == "-c":
            _code = sys.argv.pop(1)
            sys.path[0] = ""
            _names = {"__name__": "__main__"}  # which are there until the interpreter has ended
            exec(compile(_code, "<string>", "exec"), _names)
        else:
            sys.path[0] = str(Path(sys.argv[0]).parent)
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if not _request["whole end"] and isinstance(end.code, int | None):
            _skip_teardown(end.code or 0)
        raise
    if not _request["whole end"]:
        _skip_teardown(0)
