"""Choose the reading that may call the model next, so that callers share the slots fairly."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

_PAUSE = 1.0
"""Longest time between two calls for which a reading may keep its slot, in seconds."""


class FairTurns:
    """Slots for model calls, assigned anew for each call.

    A free slot goes to the caller that holds the fewest; among equals, to the one that has not had
    one for longest. Readings of one caller take turns.

    Args:
        slots: most calls at once.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._resting: list[Seat] = []

    def seat(self, caller: str) -> Seat:
        """Return a place for one reading of `caller`, to be closed at the reading's end."""
        return Seat(self, caller)

    async def take(self, caller: str) -> None:
        """Wait for a slot."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(place)
        for seat in tuple(self._resting):
            if self._is_due(seat.caller):
                seat.close()
        self._deal()
        try:
            await place
        except BaseException:
            if place.done() and not place.cancelled():  # it was assigned before we could decline
                self.give_back(caller)
            else:
                self._remove(caller, place)
            raise

    def give_back(self, caller: str) -> None:
        """Give a slot back, to the caller whose turn is next."""
        self._free += 1
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        if caller in self._waiting:
            self._waiting[caller] = self._waiting.pop(caller)  # behind the others
        self._deal()

    def rest(self, seat: Seat) -> bool:
        """Let a seat keep its slot, unless another reading is due; return whether it may."""
        if self._is_due(seat.caller):
            return False
        self._resting.append(seat)
        return True

    def wake(self, seat: Seat) -> None:
        """End a seat's rest; it keeps its slot."""
        self._resting.remove(seat)

    def _is_due(self, caller: str) -> bool:
        """Whether a reading is waiting that should get the slot of `caller`."""
        return caller in self._waiting or any(
            self._held[other] < self._held[caller] for other in self._waiting
        )

    def _deal(self) -> None:
        while self._free and self._waiting:
            caller = min(self._waiting, key=self._held.__getitem__)
            place = self._waiting[caller][0]
            self._remove(caller, place)
            if not place.done():
                self._free -= 1
                self._held[caller] += 1
                place.set_result(None)

    def _remove(self, caller: str, place: asyncio.Future[None]) -> None:
        places = self._waiting.get(caller, ())
        if place in places:
            self._waiting[caller].remove(place)
        if not places:
            self._waiting.pop(caller, None)


class Seat:
    """The place of one reading: use `async with` for each call.

    Between two calls, the reading keeps its slot for a moment, unless a caller with fewer slots
    is waiting. Otherwise a short reading among long ones would wait anew for each of its calls.

    Args:
        turns: the slots.
        caller: the caller whose reading this is.
    """

    def __init__(self, turns: FairTurns, caller: str) -> None:
        self.caller = caller
        self._turns = turns
        self._leaving: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        if self._leaving is None:
            await self._turns.take(self.caller)
        else:
            self._wake()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._turns.rest(self):
            self._leaving = asyncio.get_running_loop().call_later(_PAUSE, self.close)
        else:
            self._turns.give_back(self.caller)

    def close(self) -> None:
        """Give back a slot that was kept."""
        if self._leaving is not None:
            self._wake()
            self._turns.give_back(self.caller)

    def _wake(self) -> None:
        assert self._leaving is not None  # noqa: S101 - only then does it rest
        self._leaving.cancel()
        self._leaving = None
        self._turns.wake(self)
