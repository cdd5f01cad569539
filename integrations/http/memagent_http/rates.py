"""Limits on what a caller may do in a minute."""

from __future__ import annotations

from time import monotonic

from memagent_http.refusals import Refusal

_MOST_CALLERS = 10_000
"""Buckets kept; the least recently used are dropped."""


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
