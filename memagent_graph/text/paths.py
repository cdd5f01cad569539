"""Open paths: a file, all files of a folder, or a glob."""

from __future__ import annotations

import glob
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_graph.errors import SourceError, SourceNotFoundError, UnreadableSourceError
from memagent_graph.sync import work_through
from memagent_graph.text.conversion import CONVERTERS
from memagent_graph.text.converters import AT_ONCE
from memagent_graph.text.files import open_file
from memagent_graph.text.source import JoinedSource, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memagent_graph.text.files import Opener


_ADDRESS = re.compile(r"(\w{2,}):/+(.+)", re.DOTALL)
"""A URL as a `Path` has it, with one slash of two. The name of a drive is one letter."""


def open_path(path: Path, name: str | None = None, opener: Opener | None = None) -> Source:
    """Open a file, all files of a folder, or the files that a glob matches.

    Links that lead out of the folder or glob, or to hidden files in it, are skipped: the author of
    a folder, such as a project of strangers, must not choose what else is read.

    Args:
        path: the file, folder or glob.
        name: its name in output, and the prefix of a folder's files; its path by default.
        opener: opens each file, as for `open`; links in a folder are resolved before.

    Raises:
        SourceNotFoundError: The path does not exist, or the glob matches nothing.
        UnreadableSourceError: The file is binary, or there is nothing to read.
    """
    if path.is_dir():
        folder = path.absolute()
        files = sorted(_walk(folder))
        if name is not None:
            return _join_files(files, folder, name, path, prefix=f"{name}/", opener=opener)
        return _join_files(files, folder.parent, str(path), path)
    if path.exists():
        return open_file(path, name, opener)
    if glob.has_magic(str(path)):
        files = sorted(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207 - absolute ones too
        files = [file for file in files if file.is_file()]
        if files:
            root = Path(os.path.commonpath([file.parent for file in files]))
            return _join_files(files, root, name or str(path), path)
    if address := _ADDRESS.match(str(path)):
        url = f"{address[1]}://{address[2]}"
        message = (
            f"{url} is a web address, and nothing is downloaded. Save it as a file, or pipe it in: "
            f"curl --location {url} | memagent ask QUESTION -"
        )
        raise SourceNotFoundError(message)
    message = f"There is no {path}. Check the path, which is relative to {Path.cwd()}."
    raise SourceNotFoundError(message)


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):  # does not follow links, so it ends
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(root, name) for name in files)


def _join_files(
    files: Sequence[Path],
    root: Path,
    name: str,
    asked: Path,
    *,
    prefix: str = "",
    opener: Opener | None = None,
) -> Source:
    base = _without_wildcards(asked).absolute()
    opened = work_through(
        [
            (
                partial(
                    _open_meant, file, base, prefix + file.relative_to(root).as_posix(), opener
                ),
                is_converted(file),
            )
            for file in files
        ],
        AT_ONCE,
    )
    skipped = opened.count(None)
    parts = [part for part in opened if part is not None and part.length]
    if not parts:
        message = (
            f"Nothing in {name} can be read. Skipped files: {skipped} (hidden, binary, or links "
            "out of the folder)."
        )
        raise UnreadableSourceError(message)
    return JoinedSource(parts, name, uri=asked.absolute().as_uri(), skipped=skipped)


def is_converted(path: Path) -> bool:
    """Whether a file is converted to text, in another process."""
    return path.suffix.lower() in CONVERTERS


def _open_meant(file: Path, base: Path, name: str, opener: Opener | None) -> Source | None:
    """Open a file of a folder; None if it cannot be read, is hidden, or leads out of the folder."""
    try:
        if file.name.startswith(".") or _leads_away(file.absolute(), base):
            return None
        if opener is None:
            return open_file(file, name)
        return open_file(Path(os.path.realpath(file)), name, opener)
    except (SourceError, ImportError, OSError):
        return None


def _leads_away(file: Path, base: Path) -> bool:
    """Whether links take a file out of the folder, or to something hidden in it."""
    target, inside = Path(os.path.realpath(file)), os.path.realpath(base)
    if not target.is_relative_to(inside):
        return True
    return _hidden(target.relative_to(inside)) and not _hidden(file.relative_to(base))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _without_wildcards(pattern: Path) -> Path:
    """The folder in which a glob begins; a path without wildcards is returned unchanged."""
    while glob.has_magic(str(pattern)):
        pattern = pattern.parent
    return pattern
