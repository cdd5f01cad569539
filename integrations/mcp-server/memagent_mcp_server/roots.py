"""The files and folders that clients may read, which are named when the server starts."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from memagent_graph.errors import ConfigurationError, SourceError, SourceNotFoundError
from memagent_graph.text.files import open_path, open_source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memagent_graph.text.source import Source


class Roots:
    """Files and folders that may be read, each named by its last part.

    A source is a root's name followed by the path below it, "contracts/2024/lease.pdf", or an
    absolute path. A path is resolved, through `..` and all links, before anything is opened. Paths
    outside of the roots are refused with the same message whether or not they exist.

    Args:
        paths: the files and folders.

    Raises:
        ConfigurationError: One does not exist, or two have the same name.

    Examples:
        >>> from pathlib import Path
        >>> from memagent_mcp_server import Roots
        >>> _ = Path("lease.txt").write_text("Ann Kestrel signed the lease.")
        >>> Roots(["lease.txt"]).names
        ['lease.txt']
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self._roots: dict[str, Path] = {}
        for given in paths:
            try:
                root = Path(given).resolve(strict=True)
            except (OSError, RuntimeError) as error:
                message = (
                    f"The root {given} cannot be read: {error}. Name an existing file or folder."
                )
                raise ConfigurationError(message) from error
            if not root.name or root.name in self._roots:
                message = f"The root {given} has the name of another root: name a parent folder."
                raise ConfigurationError(message)
            self._roots[root.name] = root
        if not self._roots:
            raise ConfigurationError("Name at least one file or folder that may be read.")

    @property
    def names(self) -> list[str]:
        """The names of the roots."""
        return list(self._roots)

    def open(self, source: str, within: Iterable[str] | None = None) -> Source:
        """Open a source.

        Args:
            source: the source, as named by a client.
            within: addresses of the client's own roots; sources outside of all of them are refused
                too. None if the client offers no roots.

        Raises:
            SourceError: The source is outside of the roots, is hidden, or cannot be read.
        """
        allowed = self._roots if within is None else self._shared(within)
        name, path = self._find(source, allowed)
        try:
            return open_source(open_path(path, name, open_unlinked))
        except OSError as error:  # a part of the path became a link since it was resolved
            raise _refusal(source, allowed) from error

    def _shared(self, addresses: Iterable[str]) -> dict[str, Path]:
        """The intersections of this server's roots with the client's."""
        shared = {}
        places = [place for place in map(_place_of, addresses) if place is not None]
        for place in places:
            for name, root in self._roots.items():
                if root.is_relative_to(place):
                    shared[name] = root
                elif place.is_relative_to(root):
                    shared[(name / place.relative_to(root)).as_posix()] = place
        return shared

    def _find(self, source: str, allowed: dict[str, Path]) -> tuple[str, Path]:
        try:
            found = self._place(Path(source)).resolve()
            exists = found.exists()
        except (OSError, RuntimeError, ValueError) as error:  # too long, links in a circle, NUL
            raise _refusal(source, allowed) from error
        if not any(found.is_relative_to(place) for place in allowed.values()):
            raise _refusal(source, allowed)
        for name, root in self._roots.items():
            if not found.is_relative_to(root):
                continue
            below = found.relative_to(root)
            shown = (name / below).as_posix()
            if any(part.startswith(".") for part in below.parts):
                message = f"{shown} is hidden: name a file that is not."
                raise SourceError(message)
            if not exists:
                message = f"There is no {shown}: check the path."
                raise SourceNotFoundError(message)
            return shown, found
        raise _refusal(source, allowed)

    def _place(self, path: Path) -> Path:
        if path.is_absolute():
            return path
        first, *rest = path.parts or ("",)
        if first not in self._roots:
            raise ValueError(first)
        return self._roots[first].joinpath(*rest)


def _refusal(source: str, allowed: Iterable[str]) -> SourceError:
    why = "Nothing is fetched from addresses. " if "://" in source else ""
    names = ", ".join(allowed)
    what = (
        f"A source is one of {names}, or a path below one."
        if names
        else "The client's roots and this server's have nothing in common: open a folder in both."
    )
    return SourceError(f"{source[:200]!r} cannot be read here. {why}{what}")


def _place_of(address: str) -> Path | None:
    """The path of a client's address; None if it is not a path on this machine."""
    try:
        parts = urlsplit(address)
        path = Path(url2pathname(parts.path))
        if parts.scheme == "file" and parts.netloc in ("", "localhost") and path.is_absolute():
            return path.resolve()
    except (OSError, RuntimeError, ValueError):  # too long, links in a circle, NUL
        pass
    return None


def open_unlinked(path: str, flags: int) -> int:
    """Open a file by its absolute path, or fail if a part of it has become a link."""
    if os.open not in os.supports_dir_fd:  # Windows
        return os.open(path, flags)
    root, *folders, last = Path(path).parts
    follow = os.O_NOFOLLOW | os.O_CLOEXEC
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = os.open(folder, _LOOK | os.O_DIRECTORY | follow, dir_fd=at)
            os.close(at)
            at = below
        found = os.open(last, flags | os.O_NONBLOCK | follow, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "not a file", path)
    return found


_LOOK = getattr(os, "O_PATH", os.O_RDONLY)
