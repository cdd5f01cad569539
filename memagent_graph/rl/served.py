"""A policy on a vLLM server: sampling and loading weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memagent_graph.errors import ModelError
from memagent_graph.models.endpoint import ChatEndpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch


_WHOLE = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


def served_policy(model: str, base_url: str, **options: Any) -> ChatEndpoint:
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
    sampling = {"temperature": 1.0, "top_p": 1.0, "extra_body": body}
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
