"""Keys of callers: compared in constant time, and not to be guessed."""

from __future__ import annotations

import hmac
from hashlib import sha256
from ipaddress import IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Any

from memagent_http.rates import RateLimit
from memagent_http.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from starlette.requests import Request

SHORTEST = 16
"""Characters of a key: shorter ones can be guessed."""
_WRONG = 20
"""Wrong keys of one address per minute: enough for mistakes, too few for guessing."""
_MOST_ADMITTED = 10_000
"""Pairs of caller and address that are remembered; the oldest are dropped."""
_NETWORK_BITS = 64
"""Bits of an IPv6 address that identify a client, which has all addresses below them."""


def address_of(scope: MutableMapping[str, Any]) -> str:
    """Return the address of a client, without the part that it can choose."""
    address: str = scope["client"][0] if scope.get("client") else ""
    try:
        found = IPv6Address(address)
    except ValueError:
        return address
    return str(found.ipv4_mapped or IPv6Network((int(found), _NETWORK_BITS), strict=False))


class Keys:
    """The keys of a server.

    Args:
        names: names of callers by key.
        what: name of a key, for messages.
        wrong: wrong keys per minute after which an address must wait.
    """

    def __init__(self, names: Mapping[str, str], *, what: str = "key", wrong: int = _WRONG) -> None:
        self._names = {_digest(_encode(key)): name for key, name in names.items()}
        self._what = what
        self._wrong = RateLimit(wrong, f"wrong {what}s")
        self._admitted: dict[tuple[str, str], bool] = {}

    def check(self, request: Request) -> str:
        """Return the name of a request's caller, who sends a key as a bearer token.

        Raises:
            Refusal: It has no key or a wrong one, or its address sent too many wrong ones.
        """
        address = address_of(request.scope)
        # The scheme is in any case: RFC 7235, section 2.1.
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = key.strip(" ").encode("latin-1")
        if scheme.lower() == "bearer" and given:
            name = self._find(given)
            if name is not None:
                self._admit(address, name)
                return name
            self._wrong.take(address)
        raise self._refusal()

    def check_given(self, key: str, address: str) -> None:
        """Check a key that a form gives.

        Raises:
            Refusal: It is wrong, or the address sent too many wrong ones.
        """
        self._wrong.check(address)
        if self._find(_encode(key)) is None:
            self._wrong.take(address)
            raise self._refusal()

    def _refusal(self) -> Refusal:
        return Refusal(
            401,
            f"A {self._what} of this server is needed: Authorization: Bearer {self._what.upper()}.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )

    def _find(self, given: bytes) -> str | None:
        """The caller of a key: all are compared, so that timing reveals nothing about them."""
        found = _digest(given)
        names = [name for digest, name in self._names.items() if hmac.compare_digest(digest, found)]
        return names[0] if names else None

    def _admit(self, address: str, name: str) -> None:
        """Accept a right key, unless its address is guessing keys and has not used it before."""
        here = (address, name)
        if self._admitted.pop(here, None) is None:
            self._wrong.check(address)
        self._admitted[here] = True
        if len(self._admitted) > _MOST_ADMITTED:
            del self._admitted[next(iter(self._admitted))]


def _encode(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _digest(key: bytes) -> str:
    return sha256(key).hexdigest()
