"""Limits on the size and the number of requests."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from memagent_graph.errors import ConfigurationError
from memagent_openai_server.http.refusals import Refusal

_MOST_CALLERS = 10_000
"""Buckets kept; the least recently used are dropped."""


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


class RateLimit:
    """A token bucket per caller, with the requests of one minute.

    Args:
        per_minute: requests per minute; 0 for no limit.
        of: name of what is counted, for messages.
    """

    def __init__(self, per_minute: int, of: str = "requests") -> None:
        self._per_minute = per_minute
        self._of = of
        self._buckets: dict[str, tuple[float, float]] = {}

    def check(self, caller: str) -> float:
        """Return the number of requests left to a caller.

        Raises:
            Refusal: None is left.
        """
        now, each = monotonic(), 60.0 / self._per_minute
        left, when = self._buckets.get(caller, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - when) / each)
        if left < 1:
            seconds = max(1, round((1 - left) * each))
            message = f"More than {self._per_minute} {self._of} a minute: try again in {seconds} s."
            headers = {"retry-after": str(seconds)}
            raise Refusal(429, message, code="rate_limit_exceeded", headers=headers)
        return left

    def take(self, caller: str) -> None:
        """Count one request.

        Raises:
            Refusal: The limit is reached.
        """
        if not self._per_minute:
            return
        left = self.check(caller)
        self._buckets.pop(caller, None)
        self._buckets[caller] = (left - 1, monotonic())
        if len(self._buckets) > _MOST_CALLERS:
            del self._buckets[next(iter(self._buckets))]
