"""Records rollouts: a callback that any run of the graph can carry."""

from __future__ import annotations

import json
import threading
import warnings
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler

from memagent_graph.errors import TraceError
from memagent_graph.graph.observing import Observer, part
from memagent_graph.graph.records import round_of, span_of
from memagent_graph.rl.attempts import Attempt, Call, sampling_of
from memagent_graph.rl.records import Conversation, End, Feedback, fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from langchain_core.outputs import LLMResult
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.records import Fold
    from memagent_graph.readers.base import Answer
    from memagent_graph.rl.sinks import Sink

ROLLOUT = "memagent_rollout"
"""Where a run's metadata have the id of its rollout."""
_KNOWN = ("memagent_sample", "memagent_group", ROLLOUT)
"""What a run's metadata say about its rollout."""
_NO_TOKENS = (
    "The model does not tell token ids and log-probabilities, without which nothing can be learned "
    "from a rollout. Make it with logprobs=True; a server must be vLLM's, and asked with "
    "return_token_ids=True."
)
_NO_CALLS = (
    "No call of a chat model was seen in this reading. Only readers that ask a chat model, and "
    "pass it the run's config, can be recorded."
)
_USED_TWICE = (
    "Two readings have the rollout id {!r}. Give each run a config of its own, or leave the id to "
    "the recorder."
)
_REUSED = "reading that began with a stored memory"
_RESUMED = "reading that was resumed"


class TraceRecorder(BaseCallbackHandler, Observer):
    """Writes what a model was asked and what it wrote, for each chunk and each answer.

    One recorder serves any number of runs at once, from any thread and event loop, of this graph
    or of a host's that it is a node in.

    Only the conversations that a memory came from are recorded: not the attempt that failed, nor
    the reply that the graph refused. A chunk that had to be halved has one for each part. Those of
    segments, of their merges and of all rounds belong to the rollout of their question. A run that
    fails leaves a rollout without an end, which loading skips.

    Args:
        sink: where records go. Its errors end the run.
        tokenizer: the model's own, for its fingerprint.
        policy: version of the model's weights; set it anew when they change.

    Attributes:
        skipped: readings that could not be recorded, by reason.

    Raises:
        TraceError: The tokenizer does not tell its vocabulary. From the run: the model does not
            tell token ids or log-probabilities, or two readings have the same rollout id.

    Examples:
        >>> from memagent_graph import create_memagent
        >>> from memagent_graph.models.transformers import ChatTransformers
        >>> from memagent_graph.rl import TraceRecorder
        >>> from memagent_graph.rl.sinks import ListSink
        >>> from transformers import AutoTokenizer
        >>> name = "Qwen/Qwen2.5-0.5B-Instruct"
        >>> model = ChatTransformers(model=name, temperature=1.0, logprobs=True, max_tokens=50)
        >>> sink = ListSink()
        >>> recorder = TraceRecorder(sink, tokenizer=AutoTokenizer.from_pretrained(name))
        >>> asked = {"question": "Who signed?", "document": "Ann Kestrel signed."}
        >>> out = create_memagent(model).invoke(asked, recorder.config(rollout="r1"))
        >>> recorder.feedback("r1", 1.0)
        >>> [type(record).__name__ for record in sink.take()]
        ['Conversation', 'Conversation', 'End', 'Feedback']
    """

    raise_error = True  # else LangChain only logs what goes wrong here
    run_inline = True  # else each event of asynchronous code would go through a thread

    def __init__(self, sink: Sink, *, tokenizer: object, policy: int = 0) -> None:
        self.sink = sink
        self.policy = policy
        self.tokenizer = fingerprint(tokenizer)
        self.skipped: Counter[str] = Counter()
        self._readings: dict[UUID, _Reading | None] = {}  # None: it cannot be recorded
        self._above: dict[UUID, UUID] = {}  # the run that each run is a part of
        self._attempts: dict[UUID, Attempt] = {}
        self._calls: dict[UUID, Call] = {}
        self._under_way: set[str] = set()
        self._lock = threading.Lock()

    def config(
        self, *, sample: str | None = None, group: str | None = None, rollout: str | None = None
    ) -> RunnableConfig:
        """What to pass as a run's config. Stored memories are not reused in such a run.

        Args:
            sample: id of the question; the group's by default.
            group: rollouts to compare this one with; those of the same question about the same
                document by default, wherever they run.
            rollout: id of this rollout; that of the reading's run by default.
        """
        known = dict(zip(_KNOWN, (sample, group, rollout), strict=True))
        return {
            "callbacks": [self],
            "metadata": {name: value for name, value in known.items() if value is not None},
            "configurable": {"memagent_reuse": False},
        }

    def feedback(self, rollout: str, reward: float) -> None:
        """Say what a rollout was worth, at any time after it ended; the last word counts.

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
        """A chain begins: within a step, of a reader of somebody else's, or anywhere."""
        if parent_run_id is None:
            return
        self._above[run_id] = parent_run_id
        outer = self._attempts.get(parent_run_id)
        if outer is not None:
            self._attempts[run_id] = outer

    def on_chain_end(self, outputs: object, *, run_id: UUID, **kwargs: object) -> None:
        """A chain, a step or a whole run ended well."""
        self._above.pop(run_id, None)
        if self._attempts.pop(run_id, None) is None:
            self._leave(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: object) -> None:
        """A chain, a step or a whole run failed."""
        self._above.pop(run_id, None)
        if self._attempts.pop(run_id, None) is None:
            self._leave(run_id)

    def on_chat_model_start(
        self,
        serialized: object,
        messages: object,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """A model is asked."""
        attempt = self._attempts.get(parent_run_id) if parent_run_id else None
        if attempt is not None:
            sampling = sampling_of(kwargs.get("invocation_params") or {})
            self._calls[run_id] = Call(attempt, sampling, self.policy, part.get())

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: object) -> None:
        """A model replied."""
        call = self._calls.pop(run_id, None)
        if call is not None:
            message = getattr(response.generations[0][0], "message", None)
            call.generation = getattr(message, "response_metadata", {}).get("generation")
            call.attempt.replies.append(call)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: object) -> None:
        """A model failed."""
        self._calls.pop(run_id, None)

    def opened(self, step: UUID, fold: Fold, about: Mapping[str, object]) -> None:
        """A document is open."""
        reading = self._above[step]
        progress, source = fold["progress"], fold["source"]
        if reading in self._attempts:  # a reading within a step of another is a part of that one
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
        with self._lock:
            if rollout in self._under_way:
                raise TraceError(_USED_TWICE.format(rollout))
            self._under_way.add(rollout)
        sample = str(group if sample is None else sample)
        self._readings[reading] = _Reading(sample, str(group), rollout)

    def begins(self, step: UUID) -> None:
        """The reader is going to be asked."""
        self._attempts.setdefault(step, Attempt())

    def refused(self, step: UUID, reply: int) -> None:
        """A reply is not what a memory came from."""
        replies, now = self._attempts[step].replies, part.get()
        own = [place for place, call in enumerate(replies) if call.part is now]
        if own:  # else no model was asked
            del replies[own[reply]]

    def overwritten(self, step: UUID, before: Fold, after: Fold) -> None:
        """A chunk was read."""
        known = self._reading_of(step)
        if known is None:
            return
        source, progress = before["source"], before["progress"]
        start, apart = span_of(source).start, "whole" in source
        if progress["position"] == start and not (apart or progress["again"]):
            known.steps = 0  # perhaps not for the first time
        read = {
            "start": progress["position"],
            "end": after["progress"]["position"],
            "changed": before["memory"] != after["memory"],
            "round": round_of(source),
            "segment": start if apart else None,
        }
        for reply in self._attempts[step].replies:
            self._record(known, reply, final=False, **read)

    def merged(self, step: UUID, parts: Sequence[Fold], after: Fold) -> None:
        """The memories of the segments were merged."""
        known = self._reading_of(step)
        if known is None:
            return
        for reply in self._attempts[step].replies:
            self._record(known, reply, final=False, round=round_of(parts[0]["source"]))

    def answered(self, step: UUID, answer: Answer) -> None:
        """The answer was written."""
        reading = self._above[step]
        if reading not in self._readings:
            self._skip(_RESUMED)
        known, replies = self._leave(reading), self._attempts[step].replies
        if known is None:
            return
        if not replies:
            raise TraceError(_NO_CALLS)
        for reply in replies:
            self._record(known, reply, final=reply is replies[-1])
        self.sink.write(End(known.rollout, known.steps, answer.final, response=answer.text))

    def _record(self, reading: _Reading, reply: Call, *, final: bool, **read: Any) -> None:
        generation = reply.generation
        if not generation:
            raise TraceError(_NO_TOKENS)
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

    def _reading_of(self, step: UUID) -> _Reading | None:
        """The reading that a step is in, perhaps as one of a segment; None if it has no record."""
        run: UUID | None = self._above[step]
        while run is not None and run not in self._readings:
            run = self._above.get(run)
        return None if run is None else self._readings[run]

    def _leave(self, run: UUID) -> _Reading | None:
        """Forget a run that ended; the reading that it was, if it was one to be recorded."""
        reading = self._readings.pop(run, None)
        if reading is not None:
            with self._lock:
                self._under_way.discard(reading.rollout)
        return reading

    def _skip(self, reason: str) -> None:
        with self._lock:
            self.skipped[reason] += 1
            first = self.skipped[reason] == 1
        if first:
            message = f"Not recorded: {reason}. This is said once; `skipped` counts all."
            warnings.warn(message, RuntimeWarning, stacklevel=2)


@dataclass(slots=True)
class _Reading:
    """A reading under way.

    Attributes:
        steps: conversations recorded so far.
    """

    sample: str
    group: str
    rollout: str
    steps: int = 0
