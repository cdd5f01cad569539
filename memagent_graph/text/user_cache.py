"""The user's cache of converted texts and indexes: its folder, its contents, and clearing it."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from threading import Event

from memagent_graph.config import from_environment
from memagent_graph.text.cache import Cache

OFF = "off"

_FOLDER = "converted"
_LIMIT_MB = 1024
_MB = 1 << 20

_no_plain_text = Event()


def keep_no_plain_text() -> None:
    """Keep texts and indexes in the cache only if they can be encrypted, from now on."""
    _no_plain_text.set()


def open_cache() -> Cache | None:
    """Return the cache that the environment asks for; None if there is none.

    `MEMAGENT_CACHE` is a folder or "off"; `MEMAGENT_CACHE_MB` is its limit. `LANGGRAPH_AES_KEY`,
    the key of LangGraph's `EncryptedSerializer`, also encrypts the entries. If encryption fails, or
    after `keep_no_plain_text` there is no key, nothing is kept.

    Raises:
        ConfigurationError: `MEMAGENT_CACHE_MB` is not a number above 0.
    """
    folder = folder_of_converted()
    if os.environ.get("MEMAGENT_CACHE") == OFF or folder is None:
        return None
    limit = int(from_environment("MEMAGENT_CACHE_MB", _LIMIT_MB) * _MB)
    key = os.environ.get("LANGGRAPH_AES_KEY")
    return None if _no_plain_text.is_set() and not key else _cache(folder, limit, key)


def forget_converted(digest: str) -> int:
    """Remove a document's text and index from the cache, even if the cache is off now.

    Args:
        digest: SHA-256 of the file's bytes, in hex: the `digest` of its source.

    Returns:
        Number of entries removed.

    Raises:
        OSError: An entry cannot be removed.
    """
    cache = _all_entries()
    return cache.forget(digest) if cache else 0


def count_converted(digest: str) -> int:
    """Return how many entries `forget_converted` would remove."""
    cache = _all_entries()
    return cache.count(digest) if cache else 0


def clear_converted() -> int:
    """Remove all entries from the cache, and return their number.

    Raises:
        OSError: One cannot be removed.
    """
    cache = _all_entries()
    return cache.clear() if cache else 0


def size_of_converted() -> int:
    """Return the size of all entries, in bytes."""
    cache = _all_entries()
    return cache.size() if cache else 0


def _all_entries() -> Cache | None:
    folder = folder_of_converted()
    return Cache(folder, 0) if folder else None


@lru_cache(maxsize=8)
def _cache(folder: Path, limit: int, key: str | None) -> Cache | None:
    if not key:
        return Cache(folder, limit)
    try:
        from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

        serializer = EncryptedSerializer.from_pycryptodome_aes(key=key.encode())
        serializer.cipher.encrypt(b"")
    except (ImportError, ValueError):
        return None
    return Cache(folder, limit, serializer.cipher)


def folder_of_converted() -> Path | None:
    """Return the folder of texts and indexes; None if the user has no home folder."""
    named = os.environ.get("MEMAGENT_CACHE")
    if named and named != OFF:
        return Path(named).absolute() / _FOLDER
    try:
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return base.absolute() / "memagent" / _FOLDER
