"""Decide whether and when a failed call is repeated."""

from __future__ import annotations

from redis.backoff import ExponentialWithJitterBackoff

from memagent_graph.memory.redis.pipeline import PASSING, is_busy

_BACKOFF = ExponentialWithJitterBackoff(base=0.05, cap=1.0)  # seconds
_BUSY_REPEATS = 60  # half a minute: enough for a long script, or for loading the data


class Patience:
    """The remaining repeats of one call.

    Args:
        repeats: most repeats. Pauses begin at up to 0.1 seconds, and double up to 1. A server
            that reports that it is busy or loading is asked for half a minute.
    """

    def __init__(self, repeats: int) -> None:
        self._allowed = {True: _BUSY_REPEATS, False: repeats}
        self._failures = {True: 0, False: 0}

    def pause_after(self, error: Exception) -> float | None:
        """Return the seconds to wait before the next try; None to give up."""
        busy = is_busy(error)
        if not busy and not isinstance(error, PASSING):
            return None
        self._failures[busy] += 1
        if self._failures[busy] > self._allowed[busy]:
            return None
        return _BACKOFF.compute(self._failures[busy])
