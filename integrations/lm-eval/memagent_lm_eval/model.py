"""A model of the harness that makes a reading of each prompt."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from memagent_graph import ReadingConfig, create_memagent, read_many
from memagent_graph.evidence.places import Memory
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.text.tokens import load_tokenizer
from memagent_lm_eval.prompts import split

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from lm_eval.api.instance import Instance

_NO_LIKELIHOODS = (
    "memagent generates text from a memory, and has no likelihoods of given texts. Choose tasks "
    "with output_type: generate_until, such as niah_single_1 or ruler_vt."
)


@register_model("memagent")
class MemAgentLM(LM):  # type: ignore[misc] # the harness has no types
    r"""Reads the document of a prompt chunk by chunk, and answers its question from the memory.

    Args:
        model: the model, as for `create_memagent`; the built-in reader by default.
        base_url: URL of an OpenAI-compatible server.
        options: further arguments of the model, for a model string.
        tokenizer: counts tokens and cuts chunks; the model's own by default.
        concurrency: most readings at once.
        batch_size: ignored: the engine batches readings.
        max_batch_size: ignored.
        device: ignored: it belongs to the model's options.
        budgets: fields of `ReadingConfig`.

    Raises:
        ConfigurationError: There is no such model, or the budgets do not fit its context.

    Examples:
        >>> from lm_eval.api.instance import Instance
        >>> from memagent_lm_eval import MemAgentLM
        >>> model = MemAgentLM()  # or MemAgentLM("vllm:MODEL"); for lm_eval.simple_evaluate(model)
        >>> prompt = "The vault opens at 6:40.\n\nQuestion: When does the vault open?"
        >>> asked = Instance("generate_until", {}, (prompt, {"until": []}), 0)
        >>> model.generate_until([asked])
        ['The vault opens at 6:40.']
    """

    def __init__(
        self,
        model: str | BaseChatModel | None = None,
        *,
        base_url: str | None = None,
        options: dict[str, Any] | None = None,
        tokenizer: str | None = None,
        concurrency: int = 32,
        batch_size: Any = None,
        max_batch_size: Any = None,
        device: Any = None,
        **budgets: Any,
    ) -> None:
        super().__init__()
        self.config = ReadingConfig(**budgets)
        reader = resolve_reader(
            model, config=self.config, tokenizer=tokenizer, base_url=base_url, options=options
        )
        self._reader = reader
        self._counter = load_tokenizer(tokenizer or reader.identity.tokenizer)
        self._agent = create_memagent(reader, config=self.config, tokenizer=tokenizer)
        self._concurrency = int(concurrency)

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's name in the harness's caches."""
        return self._counter.name

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Return the answers, in order, each cut at its task's stop strings and token limit."""
        return asyncio.run(self._generate(requests))

    async def _generate(self, requests: list[Instance]) -> list[str]:
        replies: dict[str, str] = {}
        tasks = []
        for number, request in enumerate(requests):
            prompt = request.args[0]
            document, question = split(prompt, self._counter, self.config.question_tokens)
            if document:
                tasks.append({"id": number, "question": question, "document": document})
            else:
                replies[str(number)] = (await self._reader.respond(prompt, Memory())).final
        async for result in read_many(self._agent, tasks, concurrency=self._concurrency):
            if result.error is not None:
                raise result.error
            replies[result.id] = (result.output or {})["answer"]
        return [
            self._ended(replies[str(number)], request.args[1])
            for number, request in enumerate(requests)
        ]

    def _ended(self, reply: str, wanted: dict[str, Any]) -> str:
        """Cut a reply at the first stop string, and at the task's token limit."""
        stops = wanted.get("until") or []
        for stop in filter(None, [stops] if isinstance(stops, str) else stops):
            reply = reply.split(stop, maxsplit=1)[0]
        most = wanted.get("max_gen_toks")
        return reply if most is None else reply[: self._counter.prefix(reply, most)]

    def loglikelihood(self, requests: list[Instance]) -> NoReturn:
        """Refuse: there are no likelihoods.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(_NO_LIKELIHOODS)

    def loglikelihood_rolling(self, requests: list[Instance]) -> NoReturn:
        """See `loglikelihood`."""
        raise NotImplementedError(_NO_LIKELIHOODS)
