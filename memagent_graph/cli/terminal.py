"""Print words of others on a terminal, and end a command with one line for an error."""

from __future__ import annotations

import shlex
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

_COMMANDS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")}, "\ufffd")

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


def mask_controls(text: str, stream: TextIO | None = None) -> str:
    """Replace control characters with a mark, unless the stream is not a terminal.

    Args:
        text: the text to print.
        stream: the stream to print to; standard output by default.
    """
    if not (stream or sys.stdout).isatty():
        return text
    return text.replace("\r\n", "\n").translate(_COMMANDS)


def row(*fields: str) -> str:
    """Join fields with tabs; no field can forge another field or a line, in a pipe either."""
    return "\t".join(field.translate(_ESCAPES) for field in fields)


@contextmanager
def report_errors(on_interrupt: str = "") -> Iterator[None]:
    """Turn our errors into exit code 1 and an interrupt into 130.

    Args:
        on_interrupt: message after an interrupt; "{command}" stands for the command line.
    """
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
    except BrokenPipeError:  # the reader of the output has enough; typer ends quietly
        raise
    except OSError as error:
        print(f"memagent: error: {_one_line(error)}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _one_line(error: Exception) -> str:
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return "; ".join(
            f"--{str(item['loc'][0]).replace('_', '-')}: {item['msg']}" for item in error.errors()
        )
    return mask_controls(" ".join(str(error).split()), sys.stderr)
