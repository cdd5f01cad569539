"""A policy on a vLLM server: how it samples, and how it gets new weights."""

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
    """A model on a vLLM server that samples from its whole distribution, at temperature 1.

    All of that is sent with each request: what a request leaves out, vLLM takes from the
    generation_config.json of the model, which for Qwen2.5 has top_k 20 and a repetition penalty.
    Tokens drawn like that are not the policy's own, and its log-probabilities not theirs.

    Args:
        model: its name at the server.
        base_url: of the server, up to `/v1`, or of a gateway before it.
        options: more of `ChatEndpoint`.
    """
    body = {**(options.pop("extra_body", None) or {}), **_WHOLE}
    sampling = {"temperature": 1.0, "top_p": 1.0, "extra_body": body}
    return ChatEndpoint(model=model, base_url=base_url, **options, **sampling)


class ServedWeights:
    """Gives new weights to a vLLM server on the same files.

    The server has to be started with `VLLM_SERVER_DEV_MODE=1` in its environment, which makes it
    obey all who can reach it: keep it on a loopback or private address.

    Args:
        url: of the server, with or without `/v1`.
        folder: which the server reaches by the same path.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._root = url.rstrip("/").removesuffix("/v1")
        self._folder = folder.absolute() / "weights"

    def __call__(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the server's weights by those of a state dict.

        Of several processes the first does so, and the others wait for it.

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
                f"The server at {self._root} did not take the new weights: {error} Start vLLM with "
                "VLLM_SERVER_DEV_MODE=1 in its environment."
            )
            raise ModelError(message) from error


_RELOADING = 600.0
"""Seconds in which a server must have read its weights."""
