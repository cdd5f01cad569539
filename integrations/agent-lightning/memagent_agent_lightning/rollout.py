"""One rollout: read for a question with the policy, and report the reward of the answer.

Agent Lightning (arXiv 2608.17528) only requires that an agent sends its calls to the gateway's URL
for the rollout, which records them, and posts a reward. So this module needs none of its packages;
its controller passes the URLs in the environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError, EmptyReplyError, ModelError
from memagent_graph.graph.state import ReadingInput
from memagent_graph.rl.grpo import Reward, make_reward
from memagent_graph.rl.rollouts import make_served_policy

if TYPE_CHECKING:
    from typing import Self

    from memagent_graph.prompts import Prompts
    from memagent_graph.text.tokens import TokenizerLike


class ReadingTask(BaseModel):
    """A row of the data set. Other fields, which a trainer may add, are ignored.

    Attributes:
        question: the question.
        answers: the right answers, as alternatives.
        document: the text of the document; None with a path.
        path: a file or folder that every machine of the cluster can read; None with a document.
            A task is passed in one environment variable, which on Linux holds 128 KiB, so
            documents above about 30,000 tokens need a path.

    Examples:
        >>> from memagent_agent_lightning import ReadingTask
        >>> task = ReadingTask(question="Who signed?", answers=["Ann Kestrel"], path="lease.txt")
        >>> task.model_dump_json(exclude_none=True)  # a line of the data set
        '{"question":"Who signed?","answers":["Ann Kestrel"],"path":"lease.txt"}'
    """

    model_config = ConfigDict(frozen=True)

    question: str = Field(min_length=1)
    answers: tuple[str, ...] = Field(min_length=1)
    document: str | None = None
    path: Path | None = None

    @model_validator(mode="after")
    def _has_one_document(self) -> Self:
        if (self.document is None) == (self.path is None):
            raise ValueError("a task has either a document or a path")
        return self


async def rollout(
    task: ReadingTask,
    base_url: str,
    *,
    api_key: str | None = None,
    config: ReadingConfig | None = None,
    tokenizer: TokenizerLike = None,
    prompts: Prompts | None = None,
    reward: str | Reward = "exact",
) -> float:
    """Read for one question, and return the reward of the answer.

    If the policy's reply stays empty when it is asked again, the answer counts as empty.

    Args:
        task: question, document and answers.
        base_url: URL of an OpenAI-compatible server. The gateway chooses model and temperature
            itself; on other servers, the model is "policy" at temperature 1.
        api_key: key of that server.
        config: settings of the reading; the paper's by default.
        tokenizer: the policy's tokenizer, so that chunks have as many tokens as in the paper.
        prompts: the policy's prompts.
        reward: a reward function, or the name of one in `memagent_graph.rl.grpo`.

    Raises:
        ModelError: The policy could not be called.

    Examples:
        >>> import asyncio
        >>> from memagent_agent_lightning import ReadingTask, rollout
        >>> text = "The harbour belongs to Ann Kestrel."
        >>> task = ReadingTask(question="Who owns it?", answers=["Ann Kestrel"], document=text)
        >>> asyncio.run(rollout(task, "http://localhost:8000/v1"))
        1.0
    """
    options = {"api_key": api_key} if api_key else {}
    policy = make_served_policy("policy", base_url, **options)
    agent = create_memagent(policy, config=config, tokenizer=tokenizer, prompts=prompts)
    document = task.path if task.document is None else task.document
    try:
        read = await agent.ainvoke(ReadingInput(question=task.question, document=document))
    except ModelError as error:
        if not isinstance(error.__cause__, EmptyReplyError):
            raise
        return make_reward(reward)("", task.answers)
    finally:
        await policy.aclose()
    return make_reward(reward)(read["answer"], task.answers)


class MemAgentRollout:
    """The `agent_class` for Agent Lightning's controller, which starts it for each rollout.

    It is configured by the environment: the controller sets `AGL_OPENAI_BASE_URL`, `AGL_EVENT_URL`
    and `AGL_KEY`; the recipe sets `MEMAGENT_TASK` (a `ReadingTask` in JSON), `MEMAGENT_TOKENIZER`
    and `MEMAGENT_REWARD`. A subclass can set other budgets and prompts.

    Examples:
        >>> from memagent_agent_lightning import MemAgentRollout
        >>> from memagent_graph import ReadingConfig
        >>> class ShortRollout(MemAgentRollout):
        ...     config = ReadingConfig(chunk_tokens=2000)
    """

    config: ReadingConfig = ReadingConfig()
    prompts: Prompts | None = None

    async def run(self) -> None:
        """Read, and post the reward.

        Raises:
            ConfigurationError: A variable is missing, or is not a task.
            ModelError: The policy could not be called; the rollout then counts as failed.
        """
        value = await rollout(
            _task(_variable("MEMAGENT_TASK")),
            _variable("AGL_OPENAI_BASE_URL"),
            api_key=os.environ.get("AGL_KEY"),
            config=self.config,
            prompts=self.prompts,
            tokenizer=os.environ.get("MEMAGENT_TOKENIZER") or None,
            reward=os.environ.get("MEMAGENT_REWARD") or "exact",
        )
        await _post(_variable("AGL_EVENT_URL"), value, os.environ.get("AGL_KEY"))


async def _post(url: str, value: float, key: str | None) -> None:
    """Post the reward to the gateway."""
    event = {"event_type": "reward", "data": {"value": value, "source": "agent"}}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # The last reward counts, so sending one twice does no harm.
    transport = httpx.AsyncHTTPTransport(retries=5)
    async with httpx.AsyncClient(transport=transport, timeout=60) as client:
        (await client.post(url, json=event, headers=headers)).raise_for_status()


def _task(text: str) -> ReadingTask:
    try:
        return ReadingTask.model_validate_json(text)
    except ValidationError as error:
        found = "; ".join(": ".join(map(str, (*e["loc"], e["msg"]))) for e in error.errors())
        message = f"MEMAGENT_TASK is not a task in JSON; correct the data set. {found}"
        raise ConfigurationError(message) from error


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        message = f"{name} is not set: set it, or let Agent Lightning's controller do so."
        raise ConfigurationError(message)
    return value
