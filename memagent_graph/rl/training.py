"""Make a training run from settings: model, engine, questions and loop."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ConfigurationError, ModelError, TraceError
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.models.resolve import resolve_model
from memagent_graph.prompts import Prompts
from memagent_graph.rl.loop import Journal, OnlineLoop, replay
from memagent_graph.rl.questions import number_questions, task_questions
from memagent_graph.rl.rewards import make_reward
from memagent_graph.rl.rollouts import RolloutRunner
from memagent_graph.rl.traces import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import torch

    from memagent_graph.evaluation.samples import Sample
    from memagent_graph.rl.rewards import Reward
    from memagent_graph.rl.settings import TrainingSettings

_WHOLE = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


def make_served_policy(model: str, base_url: str, **options: Any) -> ChatEndpoint:
    """Make a model on a vLLM server that samples from its whole distribution at temperature 1.

    All sampling parameters are sent with each request. vLLM takes missing ones from the model's
    generation_config.json, which for Qwen2.5 has top_k 20 and a repetition penalty; the recorded
    log-probabilities would then not be those of the distribution sampled from.

    Args:
        model: name of the model on the server.
        base_url: URL of the server, or of a gateway before it, up to `/v1`.
        options: further arguments of `ChatEndpoint`.
    """
    body = {**(options.pop("extra_body", None) or {}), **_WHOLE}
    sampling: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "extra_body": body}
    return ChatEndpoint(model=model, base_url=base_url, **options, **sampling)


class ServedWeights:
    """Loads new weights into a vLLM server that shares a folder with this process.

    The server must be started with `VLLM_SERVER_DEV_MODE=1` in its environment. Anyone who can
    reach it can then control it: keep it on a loopback or private address.

    Args:
        url: URL of the server, with or without `/v1`.
        folder: a folder that the server reaches by the same path.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._root = url.rstrip("/").removesuffix("/v1")
        self._folder = folder.absolute() / "weights"

    def __call__(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the server's weights with a state dict.

        The main process does so, and other processes wait for it.

        Raises:
            ModelError: The server cannot be reached, or refuses.
        """
        from accelerate import PartialState

        processes = PartialState()
        if processes.is_main_process:
            self._replace(weights)
        processes.wait_for_everyone()

    def _replace(self, weights: Mapping[str, torch.Tensor]) -> None:
        import httpx
        from safetensors.torch import save_file

        self._folder.mkdir(parents=True, exist_ok=True)
        plain = {name: weight.detach().cpu().clone() for name, weight in weights.items()}
        save_file(plain, self._folder / "model.safetensors")
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(self._folder)}}
        try:
            for path, sent in (("/collective_rpc", body), ("/reset_prefix_cache", None)):
                httpx.post(self._root + path, json=sent, timeout=_RELOADING).raise_for_status()
        except httpx.HTTPError as error:
            message = (
                f"The server at {self._root} did not load the new weights: {error} Start vLLM with "
                "VLLM_SERVER_DEV_MODE=1 in its environment."
            )
            raise ModelError(message) from error


_RELOADING = 600.0
"""Time in which a server must have loaded its weights, in seconds."""


class Training:
    """A run of `memagent train`.

    Args:
        settings: settings of the run.
        questions: function that makes the sample of a number, in place of `settings.tasks`. The
            first `settings.held_out` are never trained on, nor are others with the same question.
        reward: function that rewards an answer, in place of `settings.reward`.

    Attributes:
        main: whether this is the process that reports and writes, of several.

    Raises:
        ConfigurationError: There is no such model, task, reward or engine.

    Examples:
        >>> import asyncio
        >>> import json
        >>> from pathlib import Path
        >>> from memagent_graph.rl import Training, TrainingSettings
        >>> rows = [
        ...     {"question": f"Who is {n}?", "answers": ["Fox"], "title": n, "text": f"{n} Fox."}
        ...     for n in ("Ann", "Bo", "Cy")
        ... ]
        >>> _ = Path("names.json").write_text(json.dumps(rows))
        >>> settings = TrainingSettings(
        ...     model="Qwen/Qwen2.5-0.5B-Instruct",
        ...     out="trained",
        ...     tasks=["qa:names.json"],
        ...     length=20,
        ...     iterations=1,
        ...     questions=1,
        ...     group_size=2,
        ...     held_out=1,
        ...     memory_tokens=50,
        ...     answer_tokens=50,
        ... )
        >>> lines = []  # of metrics, one for each iteration and each evaluation
        >>> last = asyncio.run(Training(settings).run(lines.append))
        >>> [line["iteration"] for line in lines]
        [0, 1]
    """

    def __init__(
        self,
        settings: TrainingSettings,
        *,
        questions: Callable[[int], Sample] | None = None,
        reward: Reward | None = None,
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.settings = settings
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(settings.model)
            model = AutoModelForCausalLM.from_pretrained(settings.model, dtype="float32")
        except (OSError, ValueError) as error:
            message = (
                f"{settings.model!r} cannot be loaded: {error} Name a folder with a model, or a "
                "hub id that this machine can reach."
            )
            raise ConfigurationError(message) from error
        # Here, so that a served policy is made without torch.
        from memagent_graph.rl.trainer import MultiConversationGRPOTrainer

        self.trainer = MultiConversationGRPOTrainer(
            model, self.tokenizer, settings, folder=settings.out
        )
        self.main = self.trainer.accelerator.is_main_process
        self.journal = Journal(settings.out, main=self.main)
        self._questions = questions
        self._reward = make_reward(reward or settings.reward)
        self._prompts = Prompts.from_file(settings.prompts) if settings.prompts else Prompts()
        self._loop: OnlineLoop | None = None

    def stop(self) -> None:
        """Stop after the current iteration, with a checkpoint; safe in a signal handler."""
        if self._loop is not None:
            self._loop.stop()

    async def run(self, report: Callable[[Mapping[str, float]], None]) -> dict[str, float]:
        """Train, save the model to `settings.out / "model"`, and close the trainer.

        Args:
            report: called with the metrics of each iteration, in the main process.

        Returns:
            The last metrics.

        Raises:
            TraceError: No reading succeeded, or no rollout in the traces has a reward.
            ModelError: The engine failed for good.
        """
        settings = self.settings
        if not self.main:
            report = _unheard
        if settings.traces:
            self._replay(report)
        else:
            accelerator = self.trainer.accelerator
            model, hand_on = make_engine(
                settings, device=str(accelerator.device), processes=accelerator.num_processes
            )
            runner = RolloutRunner(
                model,
                self.tokenizer,
                config=ReadingConfig(
                    chunk_tokens=settings.chunk_tokens,
                    memory_tokens=settings.memory_tokens,
                    answer_tokens=settings.answer_tokens,
                    **settings.reading,
                ),
                prompts=self._prompts,
                reward=self._reward,
                concurrency=1 if settings.deterministic else settings.concurrency,
                seed=settings.seed,
                shared_start=settings.shared_start,
            )
            questions = (
                number_questions(self._questions, settings.held_out)
                if self._questions
                else task_questions(settings, self.tokenizer)
            )
            self._loop = OnlineLoop(
                self.trainer, runner, hand_on, questions, settings, self.journal, report=report
            )
            try:
                with _freeze_loaded():
                    await self._loop.run()
            finally:
                model.close()  # the next user of this engine expects the original weights
        self.trainer.save_model(settings.out / "model", self.tokenizer)
        self.journal.draw()
        self.trainer.accelerator.wait_for_everyone()  # until everything is written
        self.trainer.close()
        return self.journal.metrics()[-1]

    def _replay(self, report: Callable[[Mapping[str, float]], None]) -> None:
        found = load(self.settings.traces)
        rewarded = [rollout for rollout in found.rollouts if rollout.reward is not None]
        unknown = Counter({"rollout without a reward": len(found.rollouts) - len(rewarded)})
        for reason, count in (found.skipped + unknown).items():
            report({"iteration": 0, f"skipped: {reason}": count})
        if not rewarded:
            message = (
                f"There is nothing to train on: no rollout in {', '.join(self.settings.traces)} "
                "has a reward. Record rewards with TraceRecorder.feedback."
            )
            raise TraceError(message)
        self.journal.clear()
        for metrics in replay(self.trainer, rewarded, self.settings):
            self.journal.log(metrics)
            report(metrics)


def _unheard(_metrics: Mapping[str, float]) -> None:
    """The report of a process that does not report."""


@contextmanager
def _freeze_loaded() -> Iterator[None]:
    """Exempt what is loaded from garbage collection, which took a third of the time.

    A process that has frozen what it loaded keeps it so: to unfreeze would undo that too.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def make_engine(
    settings: TrainingSettings, *, device: str = "cpu", processes: int = 1
) -> tuple[Any, Callable[[Mapping[str, torch.Tensor]], None]]:
    """Return the chat model that samples, to be closed, and a function that loads weights into it.

    Args:
        settings: the settings, with the engine and its options.
        device: device of an engine of transformers: the one that this process trains on.
        processes: number of processes that train together.

    Raises:
        ConfigurationError: There is no such engine, an option is invalid, or several processes
            would each start vLLM.
        MissingDependencyError: The engine's package is not installed.
    """
    if shaping := _SAMPLING & settings.engine_options.keys():
        message = (
            f"engine_options cannot have {', '.join(sorted(shaping))}: training needs tokens "
            "sampled from the whole distribution. Leave it out."
        )
        raise ConfigurationError(message)
    options = {"logprobs": True, **settings.engine_options}
    if settings.engine.startswith(("http://", "https://")):
        served = make_served_policy(
            settings.model, settings.engine, return_token_ids=True, **options
        )
        return served, ServedWeights(settings.engine, settings.out)
    if settings.engine not in {"hf", "vllm"}:
        message = f"There is no engine {settings.engine!r}: use hf, vllm, or a vLLM server's URL."
        raise ConfigurationError(message)
    if settings.engine == "vllm" and processes > 1:
        message = (
            f"engine=vllm trains in one process, not {processes}: start a vLLM server and name "
            "its URL as the engine."
        )
        raise ConfigurationError(message)
    options |= {"temperature": 1.0, "top_p": 1.0}
    if settings.engine == "hf":
        options = {"dtype": "float32", "device": device} | options  # as the trainer computes
    model: Any = resolve_model(f"{settings.engine}:{settings.model}", **options)
    return model, model.load_weights


_SAMPLING = {"temperature", "top_p", "sampling", "seed"}
"""Options of engines that change which tokens are sampled."""
