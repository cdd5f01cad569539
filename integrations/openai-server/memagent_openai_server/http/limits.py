"""Limits on the size and the number of requests."""

from __future__ import annotations

from dataclasses import dataclass

from memagent_graph.errors import ConfigurationError


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        body_bytes: largest unpacked body. A million tokens are about 5 MB.
        body_seconds: time in which a body must arrive, in seconds.
        bytes_under_way: total size of the bodies of all requests under way; one caller may hold
            half of it.
        requests_per_minute: requests of a key, or of an address without keys; 0 for no limit.
        readings: most model calls of readings at once, shared equally among callers. The built-in
            reader makes one at a time.
        keep_days: days after which an unused response or memory is deleted; 0 for never.
        keep_bytes: size of a tenant's responses and memories, above which the least recently used
            are deleted; 0 for no limit.

    Raises:
        ConfigurationError: `bytes_under_way` is less than twice `body_bytes`.

    Examples:
        >>> from memagent_openai_server import Limits, create_app
        >>> app = create_app(limits=Limits(requests_per_minute=60, keep_days=7))
    """

    body_bytes: int = 32 * 2**20
    body_seconds: float = 30.0
    bytes_under_way: int = 256 * 2**20
    requests_per_minute: int = 0
    readings: int = 64
    keep_days: float = 30.0
    keep_bytes: int = 256 * 2**20

    def __post_init__(self) -> None:
        if self.bytes_under_way < 2 * self.body_bytes:
            message = (
                f"Bodies of {self.body_bytes} bytes need at least {2 * self.body_bytes} bytes "
                f"under way, twice as many, but only {self.bytes_under_way} are allowed: raise "
                "bytes_under_way (--megabytes-under-way)."
            )
            raise ConfigurationError(message)
