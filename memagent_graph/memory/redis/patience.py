"""Whether a failed call is repeated, and when."""

from __future__ import annotations

from redis.backoff import ExponentialWithJitterBackoff

from memagent_graph.memory.redis.pipeline import PASSING, is_busy

_BACKOFF = ExponentialWithJitterBackoff(base=0.05, cap=1.0)  # seconds
_BUSY_REPEATS = 60  # half a minute: a long script, or a data set that is loaded


class Patience:
    """The repeats that one call has left.

    Args:
        repeats: how often to try again, after up to 0.1 seconds and then up to twice as long each
            time, at most 1. A server that says it is busy or loading is there, and is asked for
            half a minute.
    """

    def __init__(self, repeats: int) -> None:
        self._allowed = {True: _BUSY_REPEATS, False: repeats}
        self._failures = {True: 0, False: 0}

    def pause_after(self, error: Exception) -> float | None:
        """Seconds to wait before the next try, None to give up."""
        busy = is_busy(error)
        if not busy and not isinstance(error, PASSING):
            return None
        self._failures[busy] += 1
        if self._failures[busy] > self._allowed[busy]:
            return None
        return _BACKOFF.compute(self._failures[busy])
