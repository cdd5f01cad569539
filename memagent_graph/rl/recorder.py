"""Record rollouts, with a callback for any run of the graph."""

from __future__ import annotations

import json
import threading
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass
from hashlib import sha256
from time import perf_counter
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import convert_to_openai_messages

from memagent_graph.errors import TraceError
from memagent_graph.graph.reading import Observer, part
from memagent_graph.readers.base import Usage
from memagent_graph.rl.traces import (
    Conversation,
    End,
    Feedback,
    JSONLinesSink,
    RecordedCall,
    fingerprint,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from uuid import UUID

    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import LLMResult
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.state import Fold
    from memagent_graph.models.completion import Generation
    from memagent_graph.readers.base import Answer
    from memagent_graph.rl.traces import Sink

_SAMPLING = {"temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"}
_SAMPLING |= {"frequency_penalty", "presence_penalty", "repetition_penalty"}
_WITHIN = ("sampling", "extra_body", "model_kwargs")
"""Parameters of chat models that contain further parameters."""


@dataclass(slots=True, eq=False)
class _RunningCall:
    """One call of a model, in an `attempt` at a step with others, by the policy of that version.

    Of several concurrent calls of a step, it belongs to a `part`. The engine's report is None until
    it returned.
    """

    attempt: list[_RunningCall]
    sampling: dict[str, float | int | None]
    policy: int
    part: object
    rollout: str | None
    prompt: list[dict[str, Any]]
    started: float
    generation: Generation | None = None


def _in_words(messages: list[BaseMessage]) -> list[dict[str, Any]]:
    """Return messages in OpenAI's format, without the bytes of pictures."""
    found: Any = convert_to_openai_messages(messages)
    for one in found:
        if isinstance(one["content"], list):
            one["content"] = [part for part in one["content"] if part["type"] == "text"]
    return found  # type: ignore[no-any-return]


def to_sampling(parameters: Mapping[str, Any]) -> dict[str, float | int | None]:
    """Return the sampling parameters among the parameters of a chat model's call."""
    for name in _WITHIN:
        if isinstance(parameters.get(name), dict):
            parameters = {**parameters, **parameters[name]}
    return {name: parameters[name] for name in sorted(_SAMPLING & parameters.keys())}


GROUP, ROLLOUT = "memagent_group", "memagent_rollout"
"""Keys of the ids of group and rollout in a run's metadata."""
_KNOWN = ("memagent_sample", GROUP, ROLLOUT)
"""Keys of sample, group and rollout in a run's metadata."""
_NO_TOKENS = (
    "The model does not report token ids and log-probabilities, which training needs. Create it "
    "with logprobs=True, and with return_token_ids=True on a server, which must be vLLM's."
)
_NO_CALLS = (
    "This reading made no call of a chat model that could be recorded. Use a reader that calls a "
    "chat model, and passes the run's config on to it."
)
_USED_TWICE = (
    "Two readings have the rollout id {!r}. Give each run its own config, or leave the id out."
)
_REUSED = "reading that began with a stored memory"
_RESUMED = "reading that was resumed"


class TraceRecorder(BaseCallbackHandler, Observer):
    """Records each call of the model, and conversations to train on: a chunk, merge or answer each.

    One recorder serves any number of concurrent runs, from any thread and event loop, of this
    graph or of a graph that it is a node of. Of calls outside of a reading it records those whose
    config names a rollout.

    Only conversations that a memory or answer came from are trained on, not failed attempts or
    replies that the graph refused. A chunk that had to be halved has one conversation for each
    part. Conversations of segments and merges belong to the rollout of their question.
    A run that fails leaves a rollout without an end, of which loading keeps the calls.

    Args:
        sink: stores the records. Its errors end the run.
        tokenizer: the model's own; its fingerprint is recorded. Without one, only calls are
            recorded, those of any model.
        policy: version of the model's weights; update the attribute when they change.

    Attributes:
        skipped: number of readings that could not be recorded, by reason.

    Raises:
        TraceError: The tokenizer does not report its vocabulary. Raised by the run: the model does
            not report token ids or log-probabilities, or two readings have the same rollout id.
    """

    raise_error = True  # otherwise LangChain only logs errors of this handler
    run_inline = True  # otherwise each event of asynchronous code would go through a thread

    def __init__(self, sink: Sink, *, tokenizer: object | None = None, policy: int = 0) -> None:
        self.sink = sink
        self.policy = policy
        self.tokenizer = None if tokenizer is None else fingerprint(tokenizer)
        self.skipped: Counter[str] = Counter()
        self._readings: dict[UUID, _RecordedReading | None] = {}  # None: it cannot be recorded
        self._above: dict[UUID, UUID] = {}  # the run that each run is a part of
        self._attempts: dict[UUID, list[_RunningCall]] = {}
        self._calls: dict[UUID, _RunningCall] = {}
        self._lock = threading.Lock()

    def config(
        self, *, sample: str | None = None, group: str | None = None, rollout: str | None = None
    ) -> RunnableConfig:
        """Return a config for a run. With it, the run does not reuse stored memories.

        Args:
            sample: id of the question; the group's id by default.
            group: id of the rollouts to compare this one with; by default the same for each reading
                of the same question and document, in any process.
            rollout: id of this rollout; the id of the reading's run by default.
        """
        known = dict(zip(_KNOWN, (sample, group, rollout), strict=True))
        return {
            "callbacks": [self],
            "metadata": {name: value for name, value in known.items() if value is not None},
            "configurable": {"memagent_reuse": False},
        }

    def feedback(self, rollout: str, reward: float) -> None:
        """Record the reward of a rollout, at any time; the last reward counts.

        Raises:
            TraceError: The reward is not a finite number.
        """
        self.sink.write(Feedback(rollout, reward))

    def on_chain_start(
        self,
        serialized: object,
        inputs: object,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: object,
    ) -> None:
        """Note a chain's parent, and whether it runs within a step."""
        if parent_run_id is None:
            return
        self._above[run_id] = parent_run_id
        outer = self._attempts.get(parent_run_id)
        if outer is not None:
            self._attempts[run_id] = outer

    def on_chain_end(self, outputs: object, *, run_id: UUID, **kwargs: object) -> None:
        """Forget a chain, a step or a whole run that ended."""
        self._above.pop(run_id, None)
        if self._attempts.pop(run_id, None) is None:
            self._readings.pop(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: object) -> None:
        """Forget a chain, a step or a whole run that failed."""
        self.on_chain_end(None, run_id=run_id)

    def on_chat_model_start(
        self,
        serialized: object,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """Begin the record of a model call within a step, or of any that names a rollout."""
        attempt = self._attempts.get(parent_run_id) if parent_run_id else None
        rollout = (kwargs.get("metadata") or {}).get(ROLLOUT)
        if attempt is None and rollout is None:
            return
        reading = parent_run_id  # another reading within this one's step has no rollout of its own
        while reading is not None and self._readings.get(reading) is None:
            reading = self._above.get(reading)
        known = None if reading is None else self._readings[reading]
        self._calls[run_id] = _RunningCall(
            [] if attempt is None else attempt,
            to_sampling(kwargs.get("invocation_params") or {}),
            self.policy,
            part.get(),
            known.rollout if known else rollout if attempt is None else None,
            _in_words(messages[0]),
            perf_counter(),
        )

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: object) -> None:
        """Complete the record of a model call."""
        message: Any = getattr(response.generations[0][0], "message", None)
        call = self._end_call(run_id, message)
        if call is not None:
            call.generation = getattr(message, "response_metadata", {}).get("generation")
            call.attempt.append(call)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: object) -> None:
        """Record that a model call failed, and why."""
        self._end_call(run_id, None, f"{type(error).__name__}: {error}")

    def _end_call(
        self, run_id: UUID, reply: AIMessage | None, error: str | None = None
    ) -> _RunningCall | None:
        """Write the record of a call that ended, if it belongs to a rollout."""
        call = self._calls.pop(run_id, None)
        if call is not None and call.rollout is not None:
            text, usage = (reply.text, reply.usage_metadata) if reply else (None, None)
            seconds = perf_counter() - call.started
            about = (call.policy, call.sampling)
            self.sink.write(
                RecordedCall(call.rollout, call.prompt, text, error, usage, seconds, *about)
            )
        return call

    def on_open(self, step: UUID, fold: Fold, about: Mapping[str, object]) -> None:
        """Begin the record of a reading whose document was opened."""
        reading = self._above[step]
        progress, source = fold["progress"], fold["source"]
        if reading in self._attempts:  # a reading within another's step belongs to that one
            self._readings[reading] = None
            return
        if progress["step"] or progress["stopped"]:
            self._readings[reading] = None
            self._skip(_REUSED)
            return
        sample, group, rollout = (about.get(name) for name in _KNOWN)
        if group is None:
            asked = [fold["question"], source["digest"]]
            group = sha256(json.dumps(asked).encode()).hexdigest()[:32]
        rollout = str(reading if rollout is None else rollout)
        sample = str(group if sample is None else sample)
        with self._lock:
            known = [*self._readings.values()]
            if any(one is not None and one.rollout == rollout for one in known):
                raise TraceError(_USED_TWICE.format(rollout))
            self._readings[reading] = _RecordedReading(sample, str(group), rollout)

    def on_begin(self, step: UUID) -> None:
        """Begin an attempt at a step."""
        if self._above[step] not in self._attempts:  # else it belongs to another's step
            self._attempts[step] = []

    def on_refuse(self, step: UUID, reply: int) -> None:
        """Drop a reply that the graph refused."""
        replies, now = self._attempts[step], part.get()
        own = [place for place, call in enumerate(replies) if call.part is now]
        if own:  # otherwise no model was called
            del replies[own[reply]]

    def on_overwrite(self, step: UUID, before: Fold, after: Fold) -> None:
        """Write the conversations of a chunk that was read."""
        known = self._find_reading(step)
        if known is None:
            return
        scope, progress = before["scope"], before["progress"]
        start, apart = scope["start"], scope["segment"] > 0
        if progress["position"] == start and not (apart or progress["again"]):
            known.steps = 0  # the reading may have begun again
        read = {
            "start": progress["position"],
            "end": after["progress"]["position"],
            "changed": before["memory"] != after["memory"],
            "segment": start if apart else None,
        }
        for reply in self._attempts[step]:
            self._record(known, reply, final=False, **read)

    def on_merge(self, step: UUID, parts: Sequence[Fold], after: Fold) -> None:
        """Write the conversations of a merge of segments."""
        known = self._find_reading(step)
        if known is None:
            return
        for reply in self._attempts[step]:
            self._record(known, reply, final=False)

    def on_answer(self, step: UUID, answer: Answer) -> None:
        """Write the conversations of the answer, and the end of the rollout."""
        reading = self._above[step]
        if reading not in self._readings:
            self._skip(_RESUMED)
        known, replies = self._readings.pop(reading, None), self._attempts[step]
        if known is None:
            return
        if not replies and self.tokenizer is not None:
            raise TraceError(_NO_CALLS)
        for reply in replies:
            self._record(known, reply, final=reply is replies[-1])
        self.sink.write(End(known.rollout, known.steps, answer.final))

    def _record(
        self, reading: _RecordedReading, reply: _RunningCall, *, final: bool, **read: Any
    ) -> None:
        if self.tokenizer is None:
            return
        generation: Mapping[str, Any] = reply.generation or {}
        prompt, completion = generation.get("prompt_token_ids"), generation.get("token_ids")
        logprobs = generation.get("logprobs")
        if not prompt or not completion or not logprobs:
            raise TraceError(_NO_TOKENS)
        conversation = Conversation(
            sample=reading.sample,
            group=reading.group,
            rollout=reading.rollout,
            step=reading.steps,
            final=final,
            prompt_ids=tuple(prompt),
            completion_ids=tuple(completion),
            logprobs=tuple(logprobs),
            policy=reply.policy,
            sampling=reply.sampling,
            tokenizer=self.tokenizer,
            finish_reason=generation.get("finish_reason"),
            **read,
        )
        reading.steps += 1
        self.sink.write(conversation)

    def _find_reading(self, step: UUID) -> _RecordedReading | None:
        """The reading that a step belongs to, directly or in a segment; None if not recorded."""
        run: UUID | None = self._above[step]
        while run is not None and run not in self._readings:
            run = self._above.get(run)
        return None if run is None else self._readings[run]

    def _skip(self, reason: str) -> None:
        with self._lock:
            self.skipped[reason] += 1
            first = self.skipped[reason] == 1
        if first:
            message = (
                f"Not recorded: {reason}. Further ones are only counted, in "
                "`TraceRecorder.skipped`."
            )
            warnings.warn(message, RuntimeWarning, stacklevel=2)


@dataclass(slots=True)
class _RecordedReading:
    """A reading under way, and the number of its conversations so far."""

    sample: str
    group: str
    rollout: str
    steps: int = 0


class CallRecord(TraceRecorder):
    """Records each call of any chat model in a file, also those that train nothing.

    `load` reads them again, and `memagent inspect --calls FILE` shows them.

    Args:
        path: the file, to which they are appended.

    Examples:
        >>> from memagent_graph.rl.recorder import CallRecord
        >>> from memagent_graph.rl.traces import load
        >>> from memagent_graph.testing import ScriptedChatModel
        >>> record = CallRecord("calls.jsonl")
        >>> reply = ScriptedChatModel("At nine.").invoke("When?", record.config(rollout="one"))
        >>> load("calls.jsonl").calls[0].reply
        'At nine.'
        >>> record.spent("one").calls
        1
    """

    def __init__(self, path: str | Path) -> None:
        self._file = JSONLinesSink(path)
        super().__init__(self._file)
        self._spent: dict[str, Usage] = defaultdict(Usage)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def spent(self, rollout: str) -> Usage | None:
        """Return what the calls of a rollout cost since it was asked last; None without a call."""
        return self._spent.pop(rollout, None)

    def _end_call(
        self, run_id: UUID, reply: AIMessage | None, error: str | None = None
    ) -> _RunningCall | None:
        call = super()._end_call(run_id, reply, error)
        if call is not None and call.rollout is not None:
            of: Mapping[str, int] = (reply and reply.usage_metadata) or {}  # type: ignore[assignment]
            tokens = (of.get("input_tokens", 0), of.get("output_tokens", 0))
            self._spent[call.rollout] += Usage(1, *tokens, perf_counter() - call.started)
        return call
