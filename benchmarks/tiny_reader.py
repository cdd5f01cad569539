"""A model of 0.14 M parameters that begins to read the small language, and how it is supervised."""

from __future__ import annotations

import random
from functools import partial
from time import process_time
from typing import TYPE_CHECKING

import torch
from tiny_language import CLOSE, HELD_OUT, NOISE, NOT, NOTHING, TRAINING
from tiny_lessons import EMPTY, END, GO, PAD, labelled, recall_chains, show_several
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from memagent_graph import Prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tiny_lessons import Example

    from memagent_graph.evaluation.samples import Sample

MARKS = ["notes", "text", "question", "answer", NOTHING, NOT, CLOSE]
GATES = ["unchanged", "ENOUGH:", "LOOK", "BACK:", "\nENOUGH:", "\nLOOK BACK:"]
"""As prompts tell of gates, and, on a line of its own, as replies use them.

Looking back is gone; its words stay, since the vocabulary is part of the models that were measured.
"""
KNOWN = [*TRAINING.towns, *TRAINING.things, *HELD_OUT.towns, *HELD_OUT.things]
VOCABULARY = [PAD, END, GO, *MARKS, *GATES, *EMPTY, *NOISE, *KNOWN]
PROMPTS = Prompts(
    update="text {chunk} notes {memory} question {question}",
    answer="notes {memory} answer {question}",
)
WIDTH = 64
_IDS = {word: index for index, word in enumerate(VOCABULARY)}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A word is a token."""
    backend = Tokenizer(models.WordLevel(_IDS, unk_token=PAD))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=PAD,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[GO],
        chat_template="{% for one in messages %}{{ one['content'] }} <go>{% endfor %}",
    )


def make_model(window: int = 4096) -> LlamaForCausalLM:
    """Two layers, 64 wide, two heads as wide; the heads of the first begin by looking back.

    Each word is a random direction. Not Qwen2, for which transformers insists on a tokenizer of
    letters.
    """
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=WIDTH,
        initializer_range=0.05,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=WIDTH,
        max_position_embeddings=window,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=_IDS[END],
        pad_token_id=_IDS[PAD],
    )
    model = LlamaForCausalLM(config)
    _draw_words(model, 0)
    for head, words in enumerate((1, 2)):
        _look_back(model, head, words)
    _look_up(model)
    return model


def _draw_words(model: LlamaForCausalLM, first: int = len(VOCABULARY) - len(KNOWN)) -> None:
    """Make each word from this one on another random direction; all have one dimension alike."""
    weight = model.model.embed_tokens.weight.data
    weight[first:] = torch.randn_like(weight[first:])
    weight[:, 0] = 2


def _look_back(model: LlamaForCausalLM, head: int, words: int) -> None:
    """Let a head of the first layer look so many words back, in the dimension that all share.

    Turned by its position in the fastest eight planes, the query fits the key best that stands so
    many words before (Su et al., arXiv 2104.09864, section 3.4).
    """
    attention = model.model.layers[0].self_attn
    rows = head * WIDTH + torch.arange(8)
    phase = words * model.model.rotary_emb.inv_freq[:8]
    with torch.no_grad():
        attention.q_proj.weight[rows, 0] = 4.0
        attention.k_proj.weight[rows, 0] = 4.0 * phase.cos()
        attention.k_proj.weight[rows + WIDTH // 2, 0] = 4.0 * phase.sin()


def _look_up(model: LlamaForCausalLM) -> None:
    """Let the first heads find what followed the same word before, as language models learn to.

    In the first layer the word before leaves a rotated copy; a query of the second fits it (Olsson
    et al., arXiv 2209.11895: induction heads).
    """
    first, second = (layer.self_attn for layer in model.model.layers)
    turned, same, rows = nn.init.orthogonal_(torch.empty(WIDTH, WIDTH)), torch.eye(WIDTH), WIDTH
    same[0, 0] = turned[:, 0] = 0  # what all words share says nothing
    with torch.no_grad():
        first.v_proj.weight[:rows], first.o_proj.weight[:, :rows] = turned, torch.eye(WIDTH)
        second.q_proj.weight[:rows], second.k_proj.weight[:rows] = 1.5 * same, 1.5 * turned.T
        second.v_proj.weight[:rows], second.o_proj.weight[:, :rows] = same, torch.eye(WIDTH)


def warm_up(model: LlamaForCausalLM, *, seed: int, recall: int = 1000, several: int = 1500) -> None:
    """Supervised training of the format, in two stages of so many steps.

    Each step draws all towns and things anew, so that nothing is learned of any of them.
    """
    rng = random.Random(seed)
    for example, steps in ((recall_chains, recall), (show_several, several)):
        train(model, partial(example, rng), steps=steps, draw_words=True)


def train_on_labels(model: LlamaForCausalLM, samples: Iterator[Sample], *, seconds: float) -> None:
    """Supervised training on right notes and answers, for so long a time of the processor."""
    train(model, partial(next, labelled(samples)), seconds=seconds, rate=0.01)


def train(
    model: LlamaForCausalLM,
    example: Callable[[], Example],
    *,
    steps: int = 0,
    seconds: float = 0.0,
    batch: int = 32,
    rate: float = 0.02,
    draw_words: bool = False,
) -> None:
    """Take so many supervised steps, or for so long; the rate rises over the first, then falls.

    Of Muon, which learns to look things up in fewer steps than AdamW does here. Norms are left to
    AdamW, at a fortieth of the rate; words stay as they are, or are drawn anew for each step.
    """
    model.set_attn_implementation("eager")  # for rows this short quicker than fused
    model.model.embed_tokens.requires_grad_(requires_grad=False)
    learned = [one for one in model.parameters() if one.requires_grad]
    optimizers = {
        torch.optim.Muon([one for one in learned if one.ndim == 2], weight_decay=0.01): rate,
        torch.optim.AdamW([one for one in learned if one.ndim < 2], weight_decay=0.0): rate / 40,
    }
    started = process_time()
    step, done = 0, 0.0
    while done < 1:
        if draw_words:
            _draw_words(model)
        ids, marks = _tensors([example() for _ in range(batch)])
        logits = model(ids).logits[:, :-1][marks[:, 1:]]
        loss = cross_entropy(logits, ids[:, 1:][marks[:, 1:]])
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        for optimizer, highest in optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = highest * min(1, (step + 1) / 50) * max(0.05, 1 - done)
            optimizer.step()
        step += 1
        done = step / steps if steps else (process_time() - started) / seconds


def save(model: LlamaForCausalLM, folder: Path) -> Path:
    """Save the model with its tokenizer."""
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def _tensors(examples: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and what is learned, both `[examples, longest]`."""
    longest = max(len(example.words) for example in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    learned = torch.zeros(len(examples), longest, dtype=torch.bool)
    for row, (words, marks) in enumerate(examples):
        ids[row, : len(words)] = torch.tensor([_IDS.get(word, 0) for word in words])
        learned[row, : len(words)] = torch.tensor(marks)
    return ids, learned
