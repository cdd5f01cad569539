"""One entry of the cache as bytes: a line with a checksum, and what it is the checksum of."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

from memagent_graph.text.conversion import Converted

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import CipherProtocol

_FORM = "memagent-converted 1"
"""Begins every entry; changes when their form does."""

_PLAIN = "plain"


def seal(key: str, converted: Converted, cipher: CipherProtocol | None = None) -> bytes:
    """The bytes of an entry.

    Args:
        key: what it will be found by.
        converted: what to keep.
        cipher: encrypts it; None keeps plain text.
    """
    text, pages = converted.encode()
    kind, body = _PLAIN, json.dumps({"key": key, "text": len(text)}).encode() + b"\n" + text + pages
    if cipher is not None:
        kind, body = cipher.encrypt(body)
    return f"{_FORM} {kind} {sha256(body).hexdigest()}\n".encode() + body


def unseal(key: str, entry: bytes, cipher: CipherProtocol | None = None) -> Converted:
    """What `seal` made an entry of, with the same key and cipher.

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
    return Converted.decode(content[: about["text"]], content[about["text"] :])
