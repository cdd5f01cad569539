"""Print words of others on a terminal, and end a command with one line for an error."""

from __future__ import annotations

import codecs
import errno
import json
import os
import shlex
import signal
import sqlite3
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, cast

import typer

from memagent_graph.errors import MemAgentError
from memagent_graph.templates import CONTROLS, escape_controls
from memagent_graph.text.terms import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TextIO

_COMMANDS = dict.fromkeys(CONTROLS - {ord("\n"), ord("\t")}, "\N{REPLACEMENT CHARACTER}")
_IN_JSON = {code: json.dumps(chr(code))[1:-1] for code in CONTROLS if code >= ord(" ")}
"""What JSON may have as it is; its line breaks are not in strings."""


def mask_controls(text: str) -> str:
    """Replace lone surrogates, and characters with which a text could act on a terminal."""
    return replace_surrogates(text).replace("\r\n", "\n").translate(_COMMANDS)


class Screen:
    """A standard stream through which no text acts on a terminal.

    Standard error is for people, so it is masked in a pipe too; standard output is whole there,
    but for lone surrogates, which cannot be encoded. What draws with controls, and masks texts
    itself, writes to the `stream` behind it.
    """

    def __init__(self, stream: TextIO, *, masks: bool = False) -> None:
        self.stream = stream
        self._mask = mask_controls if masks or stream.isatty() else replace_surrogates

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    @property
    def encoding(self) -> str:
        """The stream's encoding; never ASCII, which click would go round."""
        encoding = self.stream.encoding or "ascii"
        return "utf-8" if codecs.lookup(encoding).name == "ascii" else encoding

    def write(self, text: str) -> int:
        """Write a text; it may return to the beginning of the line first, as progress bars do."""
        start = text[:1] if text.startswith("\r") else ""
        self.stream.write(start + self._mask(text[len(start) :]))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts."""
        for line in lines:
            self.write(line)


def mask_streams() -> None:
    """Make standard output and error screens, if they are not."""
    if not isinstance(sys.stdout, Screen):
        sys.stdout = cast("TextIO", Screen(sys.stdout))
    if not isinstance(sys.stderr, Screen):
        sys.stderr = cast("TextIO", Screen(sys.stderr, masks=True))


@contextmanager
def mask_output() -> Iterator[None]:
    """Mask what is printed within."""
    before = sys.stdout, sys.stderr
    mask_streams()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def unwrap(stream: TextIO) -> TextIO:
    """Return the stream behind a screen."""
    return stream.stream if isinstance(stream, Screen) else stream


def print_in_style(text: str, **style: Any) -> None:
    """Print a text with a style of `typer.style`, if this is a terminal."""
    if sys.stdout.isatty():
        unwrap(sys.stdout).write(typer.style(mask_controls(text), **style) + "\n")
    else:
        print(text)


def row(*fields: str) -> str:
    """Join fields with tabs; no field can forge another field or a line, in a pipe either."""
    return "\t".join(map(escape_controls, fields))


def to_json(value: object, indent: int | None = None) -> str:
    """Return a value as JSON that is the same on a terminal and in a pipe."""
    return json.dumps(value, ensure_ascii=False, indent=indent).translate(_IN_JSON)


_UNWRITTEN = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.ENOSPC, errno.EPIPE)
"""Errors of writing; those of sockets become errors of ours."""


@contextmanager
def report_errors(on_interrupt: str = "") -> Iterator[None]:
    """Turn our errors into exit code 1 and an interrupt into 130, with a message.

    "{command}" in it stands for the command line.
    """

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        command = shlex.join(["memagent", *sys.argv[1:]])
        print(f"\n{on_interrupt.format(command=command)}".rstrip(), file=sys.stderr)
        raise typer.Exit(130) from None
    except (MemAgentError, ValueError) as error:
        print(f"memagent: error: {_one_line(error)}", file=sys.stderr)
        raise typer.Exit(1) from None
    except sqlite3.Error as error:
        message = (
            f"memagent: error: SQLite failed: {_one_line(error)}. Check that the disk has room, "
            "and that no other program has locked the file."
        )
        print(message, file=sys.stderr)
        raise typer.Exit(1) from None
    except OSError as error:
        _end_with(error)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def flush_output() -> Iterator[None]:
    """Write out what was printed; turn a failure into one line and exit code 1."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        _end_with(error)


def _end_with(error: OSError) -> NoReturn:
    message = _one_line(error)
    if error.filename is None and error.errno in _UNWRITTEN:
        message = f"the output is incomplete: {error.strerror}."
    for stream, text in ((sys.stdout, ""), (sys.stderr, f"memagent: error: {message}\n")):
        try:
            stream.write(text)
            stream.flush()
        except OSError:  # dropped: Python would write it again when it ends, and report that
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise typer.Exit(1) from None


def _one_line(error: Exception) -> str:
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return "; ".join(
            f"{item['loc'][0]}: {item['msg']}" if item["loc"] else item["msg"]
            for item in error.errors()
        )
    return " ".join(str(error).split())
