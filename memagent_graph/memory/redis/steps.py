"""Operations as generators: each yields the commands of a round trip and is sent the replies.

So the same lines serve synchronous and asynchronous callers, and how many round trips something
takes is the number of its `yield`s.
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

COMMANDS_PER_TRIP = 1_000  # bounds what client and server hold in memory for a large batch


class Command(NamedTuple):
    """A script with its keys and arguments or, without one, a command of Redis' own.

    Attributes:
        script: what to run.
        keys: at least one; all have the same hash tag.
        arguments: what follows the keys; of a command, the first holds its words before them.
        of_item: that a key holds another type than expected is the reply then, not the end of
            all that is sent with it.
    """

    script: Script | None
    keys: tuple[bytes, ...]
    arguments: tuple[bytes | str | int, ...] = ()
    of_item: bool = False

    def remembered(self) -> Wire:
        """As sent to a server that has seen the script."""
        if self.script is None:
            words = str(self.arguments[0]).split()
            return Wire(self.keys[0], (*words, *self.keys, *self.arguments[1:]))
        return self._script("EVALSHA", self.script.sha)

    def spelled_out(self) -> Wire:
        """As sent to one that has not."""
        return self._script("EVAL", self.script.text if self.script else "")

    def _script(self, word: str, script: str) -> Wire:
        arguments = (word, script, len(self.keys), *self.keys, *self.arguments)
        return Wire(self.keys[0], arguments)


Steps = Generator[Sequence[Command], list[Reply], T]


def wire(steps: Steps[T]) -> Generator[list[Wire], list[Reply], T]:
    """Turn commands into what is sent, large trips into several, and errors into exceptions.

    Raises:
        StoreRefusedError: The server refused one of the commands; the others were carried out.
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
        steps.close()  # at once, not when a traceback that holds it goes


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
    """Whether a key holds something that the command, or the script, was not made for."""
    return isinstance(reply, ResponseError) and "WRONGTYPE" in str(reply)
