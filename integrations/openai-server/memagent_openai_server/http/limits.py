"""How much a client may send, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from memagent_graph.errors import ConfigurationError
from memagent_openai_server.http.refusals import Refusal

_MOST_CALLERS = 10_000
"""Buckets that are kept; those used longest ago are thrown away."""


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        body_bytes: longest body, unpacked. A million tokens are about 5 MB.
        body_seconds: within which a body must have come.
        bytes_under_way: of the bodies of all requests that are not over yet; one caller may hold
            half of them.
        requests_per_minute: of a key, or of an address where there are no keys; 0 for no limit.
        readings: calls of readings to the model at once. They are dealt call by call, and
            callers share them equally. The built-in reader has one, for one processor.
        keep_days: after which a response, or a memory that nobody used, is forgotten; 0 for never.
        keep_bytes: of responses and memories of one tenant; those used longest ago are forgotten
            when there are more. 0 for any number.

    Raises:
        ConfigurationError: No body of the longest kind could come in.
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
                f"Bodies of {self.body_bytes} bytes need {2 * self.body_bytes} bytes under way or "
                f"more, which is twice as many, and {self.bytes_under_way} are allowed: raise "
                "bytes_under_way (--megabytes-under-way)."
            )
            raise ConfigurationError(message)


class RateLimit:
    """A bucket for each caller, which holds a minute's requests and fills as time goes by.

    Args:
        per_minute: requests; 0 for no limit.
        of: what is counted, in messages.
    """

    def __init__(self, per_minute: int, of: str = "requests") -> None:
        self._per_minute = per_minute
        self._of = of
        self._buckets: dict[str, tuple[float, float]] = {}

    def check(self, caller: str) -> float:
        """What is left to a caller.

        Raises:
            Refusal: Nothing is.
        """
        now, each = monotonic(), 60.0 / self._per_minute
        left, when = self._buckets.get(caller, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - when) / each)
        if left < 1:
            message = f"More than {self._per_minute} {self._of} a minute: wait."
            headers = {"retry-after": str(max(1, round((1 - left) * each)))}
            raise Refusal(429, message, code="rate_limit_exceeded", headers=headers)
        return left

    def take(self, caller: str) -> None:
        """Count one.

        Raises:
            Refusal: It is one too many.
        """
        if not self._per_minute:
            return
        left = self.check(caller)
        self._buckets.pop(caller, None)
        self._buckets[caller] = (left - 1, monotonic())
        if len(self._buckets) > _MOST_CALLERS:
            del self._buckets[next(iter(self._buckets))]
