"""Agent Lightning's own training step, with verl's own engine, on a CPU.

What needs a GPU is left out or replaced, and nothing else: the replicas of vLLM, flash-attn's
functions (by those that verl has for other hardware), counters of memory, and pinned memory.
"""

import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
import uvicorn
from agentlightning.server.app import create_app
from agentlightning.verl.agl_rollout_manager import AglRolloutManager
from agentlightning.verl.trainer import AgentLightningRayPPOTrainer
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.utils import attention_utils, npu_flash_attn_utils
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine_workers import ActorRolloutRefWorker

from memagent_agent_lightning.train import compose_recipe

RECIPE = Path(__file__).parents[1] / "recipes" / "qwen2.5-7b.yaml"
_KEY = "secret"
# All of the recipe that a small model on a CPU cannot have.
_SMALL = {
    "model.use_remove_padding": False,
    "model.enable_gradient_checkpointing": False,
    "actor.fsdp_config.use_torch_compile": False,
    "ref.fsdp_config.use_torch_compile": False,
    "actor.optim.total_training_steps": 10,
}


def small_recipe(model, settings):
    """The recipe for a small model, with other settings by name."""
    given = {f"actor_rollout_ref.{name}": value for name, value in _SMALL.items()}
    given |= {"trainer.balance_batch": False, "actor_rollout_ref.model.path": model}
    pairs = [f"{name}={value}" for name, value in (given | settings).items()]
    recipe = compose_recipe(RECIPE, pairs)
    OmegaConf.set_struct(recipe, False)
    recipe.actor_rollout_ref.model.override_config = {"attn_implementation": "sdpa"}
    for part in (recipe.actor_rollout_ref.actor, recipe.actor_rollout_ref.ref):
        kinds = ("param_dtype", "reduce_dtype", "buffer_dtype")
        part.fsdp_config.mixed_precision = dict.fromkeys(kinds, "fp32")
    OmegaConf.resolve(recipe)
    return recipe


@contextmanager
def verl_on_a_cpu(patch, folder):
    """Let verl's FSDP2 engine run in this process alone."""
    alone = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in alone.items():
        patch.setitem(os.environ, name, value)
    for name in ("memory_allocated", "memory_reserved"):
        for counter in (name, f"max_{name}"):
            patch.setattr(torch.cpu, counter, lambda *_: 0, raising=False)
    patch.setattr(torch.cpu, "empty_cache", lambda: None, raising=False)
    names = ("index_first_axis", "pad_input", "rearrange", "unpad_input")
    found = tuple(getattr(npu_flash_attn_utils, name) for name in names)
    patch.setattr(attention_utils, "_get_attention_functions", lambda: found)
    policy = transformer_impl.CPUOffloadPolicy
    patch.setattr(transformer_impl, "CPUOffloadPolicy", lambda pin_memory: policy(pin_memory=False))
    EngineRegistry.register("language_model", "fsdp2", "cpu")(transformer_impl.FSDPEngineWithLMHead)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def running_gateway():
    """Agent Lightning's own gateway, in a thread; yields its URL."""
    proxy = {"model_name": "small", "train": {"temperature": 1}, "val": {"temperature": 1}}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = create_app({"key": _KEY, "default_proxy": proxy})
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class Playback(AglRolloutManager):
    """Instead of a reader's calls, the gateway gets those that were recorded once."""

    recorded = ()

    def _create_rollouts(self, data, *, is_train):
        created = super()._create_rollouts(data, is_train=is_train)
        for queued, one in zip(created, self.recorded, strict=True):
            name = queued.rollout_id
            self._set(name, state="running", last_attempt_id="0")
            for part in one.conversations:
                self._event(name, "model_request", {"response": _response(part)})
            if one.reward is not None:
                self._event(name, "reward", {"value": one.reward})
            self._set(name, state="succeeded" if one.reward is not None else "failed")
        return created

    def _event(self, name, kind, data):
        body = {"event_type": kind, "data": data}
        sent = self.client.post(f"/api/rollouts/{name}/attempt/0/events", json=body)
        sent.raise_for_status()

    def _set(self, name, **status):
        body = {"status": status}
        self.client.patch(f"/api/rollouts/{name}", json=body).raise_for_status()


def _response(conversation):
    """What vLLM answered, as far as a gateway reads it."""
    content = [{"logprob": value} for value in conversation.logprobs]
    choice = {"token_ids": conversation.completion_ids, "logprobs": {"content": content}}
    return {"prompt_token_ids": conversation.prompt_ids, "choices": [choice]}


@dataclass
class Update:
    """One optimizer step of verl's, with the weights before it.

    Its rows are numbers of a rollout and of a conversation in it; its loss is summed over its
    micro-batches, and its gradient is that before it is clipped.
    """

    weights: dict
    rows: list = field(default_factory=list)
    loss: float = 0.0
    micro_batches: int = 0
    gradient: dict = field(default_factory=dict)


class TrainingStep(AgentLightningRayPPOTrainer):
    """Agent Lightning's trainer, without Ray and vLLM, on rollouts that were recorded.

    Groups follow one another, and have as many as the recipe; the divergence is measured from the
    model in the folder `reference`. It keeps its optimizer steps, its metrics, and the batch.
    """

    def __init__(self, recipe, rollouts, url, *, reference):
        self.config, self.rollouts = recipe, rollouts
        recipe.agentlightning.agl_base_url, recipe.agentlightning.agl_key = url, _KEY
        self.tokenizer = AutoTokenizer.from_pretrained(recipe.actor_rollout_ref.model.path)
        self.is_async = self.use_critic = self.ref_in_actor = False
        self.use_reference_policy, self.global_steps = True, 1
        self._hooks = self._agl_client = self._train_dataloader_iter = None
        questions = np.array([*dict.fromkeys(one.group for one in rollouts)], dtype=object)
        self.train_dataloader = [{"question": questions}]
        self.llm_server_manager = SimpleNamespace(
            get_addresses=lambda: ["127.0.0.1:1"], get_replicas=list
        )
        self.checkpoint_manager = SimpleNamespace(
            sleep_replicas=lambda: None, update_weights=lambda _step: None
        )
        self.actor_rollout_wg = _worker(recipe, "actor")
        recipe.actor_rollout_ref.model.path = str(reference)
        self.ref_policy_wg = _worker(recipe, "ref")
        self.updates: list[Update] = []
        self._watch(self.actor_rollout_wg.actor)
        self.metrics, self.batch = self._train_step({}, curr_step_profile=False)

    def _make_rollout_manager(self, _kind):
        manager = super()._make_rollout_manager(Playback)
        manager.recorded = self.rollouts
        return manager

    def _rollout(self, gen_batch, is_train):
        batch, metrics = super()._rollout(gen_batch, is_train)
        # Ids are the gateway's; rollouts are in the order in which they were asked for.
        names = dict.fromkeys(batch.non_tensor_batch["rollout_id_list"])
        self._numbers = {name: number for number, name in enumerate(names)}
        return batch, metrics

    def _watch(self, actor):
        """Keep what each optimizer step of the engine begins with and comes to."""
        train, step, loss_of = actor.train_batch, actor.engine.optimizer_step, actor.loss_fn

        def weights():
            return actor.engine.module.named_parameters()

        def train_batch(data):
            self.updates.append(Update({name: _whole(weight) for name, weight in weights()}))
            return train(data)

        def optimizer_step():
            found = {name: _whole(weight.grad) for name, weight in weights()}
            self.updates[-1].gradient = found
            return step()

        def loss_fn(**given):
            loss, metrics = loss_of(**given)
            update, data = self.updates[-1], given["data"]
            names, turns = data["rollout_id_list"], data["turn_index_list"]
            numbers = [self._numbers[name] for name in names]
            update.rows += zip(numbers, map(int, turns), strict=True)
            update.loss += float(loss)
            update.micro_batches += 1
            return loss, metrics

        actor.train_batch, actor.loss_fn = train_batch, loss_fn
        actor.engine.optimizer_step = optimizer_step


def _worker(recipe, role):
    worker = ActorRolloutRefWorker(recipe.actor_rollout_ref, role=role)
    worker.init_model()
    return worker


def _whole(tensor):
    return tensor.full_tensor().detach().clone()
