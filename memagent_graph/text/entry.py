"""The bytes of a cache entry: a line with a checksum, then the body."""

from __future__ import annotations

import json
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.checkpoint.serde.base import CipherProtocol

_FORM = "memagent-cached 2"
"""Format of an entry, with which it begins; raised when the format changes."""

_PLAIN = "plain"


def seal(key: str, parts: Sequence[bytes], cipher: CipherProtocol | None = None) -> bytes:
    """Return the bytes of an entry.

    Args:
        key: the key that it is found by.
        parts: the content.
        cipher: encrypts it; None keeps plain text.
    """
    about = json.dumps({"key": key, "sizes": [len(part) for part in parts]})
    kind, body = _PLAIN, b"".join([about.encode(), b"\n", *parts])
    if cipher is not None:
        kind, body = cipher.encrypt(body)
    return f"{_FORM} {kind} {sha256(body).hexdigest()}\n".encode() + body


def unseal(key: str, entry: bytes, cipher: CipherProtocol | None = None) -> tuple[bytes, ...]:
    """Return the parts that `seal` put into an entry, given the same key and cipher.

    Raises:
        ValueError: The bytes are something else.
    """
    head, _, body = entry.partition(b"\n")
    *form, kind, checksum = ["", *head.decode().split(" ")]
    if form != ["", *_FORM.split(" ")] or checksum != sha256(body).hexdigest():
        raise ValueError
    if (kind == _PLAIN) != (cipher is None):
        raise ValueError
    if cipher is not None:
        body = cipher.decrypt(kind, body)
    line, _, content = body.partition(b"\n")
    about = json.loads(line)
    if about["key"] != key:
        raise ValueError
    ends = [0, *accumulate(about["sizes"])]
    if ends[-1] != len(content):
        raise ValueError
    return tuple(content[start:end] for start, end in pairwise(ends))
