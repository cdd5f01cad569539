"""Decode several prompts in one batch, each row independent of the others.

With `generate()` of transformers, a batch shares one sampler, seed and length, and rows that have
ended are still computed. Here each row has its own, and leaves the batch when it is done.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenizers import Tokenizer
    from transformers import PreTrainedModel


@dataclass
class Row:
    """A prompt, its sampling parameters, and its reply.

    Attributes:
        prompt: token ids.
        max_tokens: longest reply, in tokens.
        temperature: 0 takes the most likely token.
        top_p: nucleus sampling: least total probability of the tokens to choose from.
        seed: seed of the sampling; None draws one.
        stop: strings that end the reply, and are not part of it.
        emit: called with each piece of text that is certain.
        left: returns whether the caller no longer waits for the reply.
        token_ids: token ids of the reply, including the one that ended it.
        logprobs: natural logarithms of their probabilities under the model, before temperature
            and `top_p`.
        text: the reply without special tokens.
        finish_reason: "stop" or "length"; None until the reply ends.
    """

    prompt: list[int]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    emit: Callable[[str], None] = lambda _text: None
    left: Callable[[], bool] = lambda: False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self._generator = torch.Generator()
        if self.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(self.seed)
        self._stream = DecodeStream(skip_special_tokens=True)
        self._emitted = 0

    def draw(self) -> float:
        """Draw a number from 0 to 1 from the row's own generator."""
        return float(torch.rand((), generator=self._generator))

    def append(
        self, token: int, logprob: float, ends: frozenset[int], tokenizer: Tokenizer
    ) -> None:
        """Add a token; set `finish_reason` if it ends the reply.

        Args:
            token: its id.
            logprob: natural logarithm of its probability.
            ends: token ids that end a reply.
            tokenizer: decodes the token.
        """
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if token in ends:
            self.finish_reason = "stop"
        else:
            self.text += self._stream.step(tokenizer, token) or ""
            places = [place for place in (self.text.find(word) for word in self.stop) if place >= 0]
            if places:
                self.text = self.text[: min(places)]
                self.finish_reason = "stop"
            elif len(self.token_ids) >= self.max_tokens:
                self.finish_reason = "length"
        self._emit()

    def _emit(self) -> None:
        """Emit the text that cannot be part of a stop string any more."""
        certain = len(self.text)
        if self.finish_reason is None and self.stop:
            certain -= max(map(len, self.stop)) - 1
        if certain > self._emitted:
            self.emit(self.text[self._emitted : certain])
            self._emitted = certain


def _name_of_cache(kind: type[PreTrainedModel]) -> str:
    """The name of the cache's argument, which newer versions of transformers changed."""
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"


def choose(logprobs: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    """Choose the next token of each row, independently of the other rows.

    Args:
        logprobs: log-probabilities of all tokens, `[rows, vocabulary]`.
        rows: the rows, with their sampling parameters and generators.
    """
    tokens: list[int] = logprobs.argmax(-1).tolist()
    for cut in (False, True):
        places = [
            place
            for place, row in enumerate(rows)
            if row.temperature > 0 and (row.top_p < 1) is cut
        ]
        if places:
            drawn = _draw(logprobs[places], [rows[place] for place in places], cut=cut)
            for place, token in zip(places, drawn, strict=True):
                tokens[place] = token
    return tokens


def _draw(logprobs: torch.Tensor, rows: Sequence[Row], *, cut: bool) -> list[int]:
    """Sample a token for each row; with `cut`, within `top_p`."""
    temperatures = torch.tensor([[row.temperature] for row in rows])
    chances, order = torch.softmax(logprobs / temperatures, -1), None
    if cut:
        chances, order = chances.sort(dim=-1, descending=True, stable=True)
        most = torch.tensor([[row.top_p] for row in rows])
        chances = chances.masked_fill(chances.cumsum(-1) - chances >= most, 0)
    reached = chances.cumsum(-1, dtype=torch.float64)
    draws = torch.tensor([[row.draw()] for row in rows], dtype=torch.float64)
    # The first token whose cumulative sum exceeds the draw: never one of probability 0.
    found = torch.searchsorted(reached, draws * reached[:, -1:], right=True)
    chosen: list[int] = (found if order is None else order.gather(-1, found))[:, 0].tolist()
    return chosen


@torch.inference_mode()
def decode(
    model: PreTrainedModel, tokenizer: Tokenizer, ends: frozenset[int], rows: Sequence[Row]
) -> None:
    """Generate the complete replies of all `rows`.

    Args:
        model: a causal language model of `transformers`, in evaluation mode.
        tokenizer: its tokenizer.
        ends: token ids that end a reply.
        rows: the prompts; the replies are written into them.
    """
    rows = list(rows)
    device = model.device
    # Readings of the same document begin with the same prompt: each prompt is computed once.
    prompts: dict[tuple[int, ...], int] = {}
    places = [prompts.setdefault(tuple(row.prompt), len(prompts)) for row in rows]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(one)) + [*one] for one in prompts], device=device)
    lengths = torch.tensor([*map(len, prompts)], device=device)
    # [prompts, width]: padding is on the left, so that all rows grow at the same end.
    mask = (torch.arange(width, device=device) >= width - lengths[:, None]).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache, name = None, _name_of_cache(type(model))
    while rows:
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **({} if cache is None else {name: cache}),
        )
        cache = getattr(output, name)
        logprobs = torch.log_softmax(output.logits[:, -1].float(), -1).cpu()
        if len(logprobs) < len(rows):
            asked = torch.tensor(places, device=device)
            cache.batch_select_indices(asked)
            logprobs, mask, positions = logprobs[asked.cpu()], mask[asked], positions[asked]
        tokens = choose(logprobs, rows)
        known = logprobs.gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        for row, token, logprob in zip(rows, tokens, known, strict=True):
            row.append(token, logprob, ends, tokenizer)
        going = [
            number
            for number, row in enumerate(rows)
            if row.finish_reason is None and not row.left()
        ]
        if len(going) < len(rows):
            rows = [rows[number] for number in going]
            if not rows:
                return
            kept = torch.tensor(going, device=device)
            cache.batch_select_indices(kept)
            mask, positions = mask[kept], positions[kept]
        ids = torch.tensor([[row.token_ids[-1]] for row in rows], device=device)
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], -1)
        positions = positions[:, -1:] + 1
