"""Print words of others on a terminal, and end a command with one line for an error."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

import typer

from memagent_graph.templates import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

_CONTROLS = {*range(0x20), *range(0x7F, 0xA0)}
_TURNING = {0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)}
"""Marks of direction, with which a text reads other than it is, and separators of lines."""
_COMMANDS = dict.fromkeys((_CONTROLS | _TURNING) - {ord("\n"), ord("\t")}, "\ufffd")

_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROLS}
_ESCAPES |= {code: f"\\u{code:04x}" for code in _TURNING}


def mask_controls(text: str, stream: TextIO | None = None) -> str:
    """Replace lone surrogates with a mark and, on a terminal, control characters too.

    Args:
        text: the text to print.
        stream: the stream to print to; standard output by default.
    """
    if not (stream or sys.stdout).isatty():
        return replace_surrogates(text)
    return replace_surrogates(text).replace("\r\n", "\n").translate(_COMMANDS)


def row(*fields: str) -> str:
    """Join fields with tabs; no field can forge another field or a line, in a pipe either."""
    return "\t".join(field.translate(_ESCAPES) for field in fields)


_UNWRITTEN = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.ENOSPC, errno.EPIPE)
"""Errors of writing; those of sockets become errors of ours."""


@contextmanager
def report_errors(on_interrupt: str = "") -> Iterator[None]:
    """Turn our errors into exit code 1 and an interrupt into 130.

    Args:
        on_interrupt: message after an interrupt; "{command}" stands for the command line.
    """
    import sqlite3

    from memagent_graph.errors import MemAgentError, SourceChangedError

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        # What is printed must go on, also where this run was told to start over.
        command = shlex.join(["memagent", *(word for word in sys.argv[1:] if word != "--restart")])
        print(f"\n{on_interrupt.format(command=command)}".rstrip(), file=sys.stderr)
        raise typer.Exit(130) from None
    except (MemAgentError, ValueError) as error:
        hint = " (--restart starts over)" if isinstance(error, SourceChangedError) else ""
        print(f"memagent: error: {_one_line(error)}{hint}", file=sys.stderr)
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
def printing() -> Iterator[None]:
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
        except OSError:
            _discard(stream)
    raise typer.Exit(1) from None


def _discard(stream: TextIO) -> None:
    """Drop what cannot be written; Python would write it again when it ends, and report that."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _one_line(error: Exception) -> str:
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return "; ".join(
            f"--{str(item['loc'][0]).replace('_', '-')}: {item['msg']}" for item in error.errors()
        )
    return mask_controls(" ".join(str(error).split()), sys.stderr)
