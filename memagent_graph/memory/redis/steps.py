"""Operations as generators, which yield the commands of a round trip and are sent the replies.

So the same code serves synchronous and asynchronous callers, and an operation takes as many round
trips as it has `yield`s.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from redis.exceptions import NoScriptError, ResponseError

from memagent_graph.errors import StoreRefusedError
from memagent_graph.memory.redis.pipeline import Reply, Wire

if TYPE_CHECKING:
    from memagent_graph.memory.redis.scripts import Script

T = TypeVar("T")

COMMANDS_PER_TRIP = 1_000  # limits the memory that a large batch takes in client and server


class Command(NamedTuple):
    """A script with its keys and arguments or, without a script, a command of Redis.

    Attributes:
        script: the script; None for a command.
        keys: at least one key; all have the same hash tag.
        arguments: the arguments after the keys; for a command, the first has the words before
            the keys.
        of_item: whether a key of another type than expected is a reply, rather than an error of
            the whole operation.
    """

    script: Script | None
    keys: tuple[bytes, ...]
    arguments: tuple[bytes | str | int, ...] = ()
    of_item: bool = False

    def remembered(self) -> Wire:
        """Return the form for a server that has the script cached."""
        if self.script is None:
            words = str(self.arguments[0]).split()
            return Wire(self.keys[0], (*words, *self.keys, *self.arguments[1:]))
        return self._script("EVALSHA", self.script.sha)

    def spelled_out(self) -> Wire:
        """Return the form for a server that does not have the script cached."""
        return self._script("EVAL", self.script.text if self.script else "")

    def _script(self, word: str, script: str) -> Wire:
        arguments = (word, script, len(self.keys), *self.keys, *self.arguments)
        return Wire(self.keys[0], arguments)


Steps = Generator[Sequence[Command], list[Reply], T]


def wire(steps: Steps[T]) -> Generator[list[Wire], list[Reply], T]:
    """Convert commands to their form for sending, split large trips, and raise errors.

    Raises:
        StoreRefusedError: The server refused a command; the others were carried out.
    """
    try:
        commands = next(steps)
        while True:
            replies: list[Reply] = []
            for start in range(0, len(commands), COMMANDS_PER_TRIP):
                replies += yield from _trip(commands[start : start + COMMANDS_PER_TRIP])
            commands = steps.send(replies)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()  # now, not when a traceback that holds it is freed


def _trip(commands: Sequence[Command]) -> Generator[list[Wire], list[Reply], list[Reply]]:
    replies = yield [command.remembered() for command in commands]
    unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:
        again = yield [commands[place].spelled_out() for place in unknown]
        for place, reply in zip(unknown, again, strict=True):
            replies[place] = reply
    for command, reply in zip(commands, replies, strict=True):
        if isinstance(reply, Exception) and not (command.of_item and is_wrong_type(reply)):
            message = f"Redis refused a command for {command.keys[0]!r}: {reply}"
            raise StoreRefusedError(message) from reply
    return replies


def is_wrong_type(reply: object) -> bool:
    """Whether a key has a type that the command or script does not support."""
    return isinstance(reply, ResponseError) and "WRONGTYPE" in str(reply)
