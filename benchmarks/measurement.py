"""How measurements are timed, kept in a file so that a stopped run continues, and printed."""

from __future__ import annotations

import json
from contextlib import suppress
from time import process_time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Row = dict[str, Any]


def seconds_of(work: Callable[[], object], clock: Callable[[], float] = process_time) -> float:
    """Return the seconds of some work, of this process's processor unless the clock is another."""
    started = clock()
    work()
    return clock() - started


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a file, none without a file; a line that a killed process tore is none."""
    rows = []
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        with suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def append_row(file: Path, row: object) -> None:
    """Append a row on a line of its own, also after a torn one."""
    with file.open("a", encoding="utf-8") as out:
        out.write("\n" + json.dumps(row, ensure_ascii=False) + "\n")


def print_head(*names: object) -> None:
    """Print the head of a Markdown table."""
    print_row(*names)
    print("|" + "---|" * len(names), flush=True)


def print_row(*cells: object) -> None:
    """Print a row of a Markdown table."""
    print("|", " | ".join(map(str, cells)), "|", flush=True)
