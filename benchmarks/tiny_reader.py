"""A language of 126 words, documents and questions in it, and a model that begins to read them.

A document is a row of sections of 28 words. Somewhere `oslo red ;` says that red belongs to oslo;
every section has such pairs about other towns, to mislead. The question is a town. In the two-hop
task one section says `oslo lima ;` and a later one `lima red ;`. The memory is the chain as far as
it is known: `oslo lima red`.

The model is warmed up by supervised training: to look towns up, to write and extend a chain, to
answer from one. What it must *not* be told there is to hold on to a chain when a section has
nothing to add: as many examples keep it as overwrite it with what the section says of another
town. That is left for reinforcement learning to find out.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from memagent_graph import Prompts
from memagent_graph.evaluation.samples import Piece, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_TOWNS = """
oslo lima cairo delhi paris tokyo quito accra sofia minsk dakar hanoi riga bonn kyoto milan
lagos perth natal turin lyon basel ghent porto
"""
_THINGS = """
red blue green gold iron salt silk wool rice corn fish jade clay coal ruby tin wine honey
amber pearl cocoa linen opium musk
"""
_NOISE = """
and but then when where while with without over under near far up down left right rain wind
snow sun moon star hill lake road bridge house door window table chair lamp walk run sit
stand look hear say ask tell give take bring send keep leave stay slow fast old new long
short high low warm cold dark bright quiet loud soft hard
"""
TOWNS, THINGS, NOISE = _TOWNS.split(), _THINGS.split(), _NOISE.split()
EMPTY = ["(empty:", "this", "is", "the", "first", "section)"]  # as the prompts say it
MARKS = ["notes", "text", "question", "none", ";"]
PAD, END, GO = "<pad>", "<end>", "<go>"
WORDS = [PAD, END, GO, *MARKS, *EMPTY, *TOWNS, *THINGS, *NOISE]
SECTION = 28
"""Words, which are tokens here, of a section, and so of a chunk."""
PROMPTS = Prompts(
    update="text {chunk} notes {memory} question {question}",
    answer="notes {memory} question {question}",
)
# Elsewhere it is slower than float32.
_FAST_BFLOAT16 = any(torch.cpu.get_capabilities().get(one) for one in ("avx512_bf16", "amx_bf16"))
_IDS = {word: index for index, word in enumerate(WORDS)}


class Example(NamedTuple):
    """Words of a sequence, and which of them are learned."""

    words: list[str]
    learned: list[bool]


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
    """0.48 M parameters: two layers, 128 wide, two heads as wide.

    Words begin at right angles to each other, for which there is just room: so what is learned of
    some, such as to copy them, holds for all. Not Qwen2, for which transformers insists on a
    tokenizer of letters.
    """
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=window,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=_IDS[END],
        pad_token_id=_IDS[PAD],
    )
    model = LlamaForCausalLM(config)
    torch.nn.init.orthogonal_(model.model.embed_tokens.weight)
    return model


def sample(
    index: int,
    *,
    hops: int,
    chunks: int,
    seed: int,
    misleading: tuple[int, ...] = (1,),
    evidence_within: int | None = None,
) -> Sample:
    """A question over a document of `chunks` sections.

    Args:
        index: of the sample.
        hops: pairs that the answer takes.
        chunks: sections.
        seed: another one makes other samples.
        misleading: how many misleading pairs a section may have.
        evidence_within: the evidence lies in so many first sections; in any by default.
    """
    rng = random.Random(f"{seed} {hops} {chunks} {index}")
    chain = rng.sample(TOWNS, hops)
    thing = rng.choice(THINGS)
    pairs = list(zip(chain, [*chain[1:], thing], strict=True))
    places = dict(
        zip(sorted(rng.sample(range(evidence_within or chunks), hops)), pairs, strict=True)
    )
    state = rng.getstate()

    def pieces() -> Iterator[Piece]:
        fresh = random.Random()
        fresh.setstate(state)
        for place in range(chunks):
            pair = places.get(place)
            others = dict(_pair(fresh, chain) for _ in range(fresh.choice(misleading)))
            words = _section(fresh, [*others.items(), *([pair] if pair else [])], SECTION)
            yield Piece(" ".join(words) + "\n", evidence=pair is not None)

    return Sample(
        id=f"{hops}-hop/{chunks}/{index}",
        task=f"{hops}-hop",
        length=chunks * SECTION,
        question=chain[0],
        answers=(thing,),
        metric="any",
        pieces=pieces,
    )


def warm_up(
    model: LlamaForCausalLM,
    *,
    seed: int,
    recall: int = 300,
    several: int = 1400,
    single: int = 900,
) -> None:
    """Supervised training, in three stages of so many steps."""
    rng = random.Random(seed)
    train(model, partial(_recall, rng), steps=recall, batch=48, rate=0.012)
    train(model, partial(_several, rng), steps=several, batch=48, rate=0.012)
    train(model, partial(_single, rng), steps=single)


def train(
    model: LlamaForCausalLM,
    example: Callable[[], Example],
    *,
    steps: int,
    batch: int = 64,
    rate: float = 0.01,
) -> None:
    """Take supervised steps; the rate rises over the first and falls to the end.

    Of Muon, which learns to look things up in fewer steps than AdamW does here. Words and norms
    are left to AdamW, at a fortieth of the rate: the words should stay as different as they are.
    """
    model.set_attn_implementation("eager")  # for rows this short quicker than fused
    matrices = [one for one in model.model.layers.parameters() if one.ndim == 2]
    others = [one for one in model.parameters() if all(one is not other for other in matrices)]
    optimizers = {
        torch.optim.Muon(matrices, weight_decay=0.01): rate,
        torch.optim.AdamW(others, weight_decay=0.01, betas=(0.9, 0.99)): rate / 40,
    }
    for step in range(steps):
        ids, learned = _tensors([example() for _ in range(batch)])
        with torch.autocast("cpu", torch.bfloat16, enabled=_FAST_BFLOAT16):
            logits = model(ids).logits[:, :-1][learned[:, 1:]]
        loss = cross_entropy(logits.float(), ids[:, 1:][learned[:, 1:]])
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, highest in optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = highest * min(1, (step + 1) / 50) * max(0.05, 1 - step / steps)
            optimizer.step()


def more_supervised(model: LlamaForCausalLM, *, seed: int, steps: int) -> None:
    """The last stage of the warm-up once more: what supervised training alone comes to."""
    train(model, partial(_single, random.Random(seed)), steps=steps)


def save(model: LlamaForCausalLM, folder: Path) -> Path:
    """Save the model with its tokenizer."""
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def _section(rng: random.Random, pairs: list[tuple[str, str]], words: int) -> list[str]:
    """Pairs strewn among noise."""
    parts = [[word] for word in rng.choices(NOISE, k=words - 3 * len(pairs))]
    parts += [[*pair, ";"] for pair in pairs]
    rng.shuffle(parts)
    return [word for part in parts for word in part]


def _pair(rng: random.Random, chain: list[str]) -> tuple[str, str]:
    """A pair about a town that has nothing to do with `chain`."""
    town, other = rng.sample([town for town in TOWNS if town not in chain], 2)
    return town, rng.choice([rng.choice(THINGS), other])


def _recall(rng: random.Random) -> Example:
    """Several pairs, then several towns, each with what belongs to it."""
    known = {town: rng.choice((*THINGS, *TOWNS)) for town in rng.sample(TOWNS, 8)}
    words = _section(rng, list(known.items()), 24 + rng.randint(0, 24))
    asked = rng.choices(list(known), k=8)
    pairs = [word for town in asked for word in (town, known[town])]
    sequence = [*words, "question", *pairs]
    return Example(sequence, [False] * (len(words) + 1) + [False, True] * len(asked))


def _several(rng: random.Random) -> Example:
    """Several questions about the same notes and section: as `_single`, but quicker to learn."""
    towns = rng.sample(TOWNS, 10)
    known = {
        town: rng.choice([rng.choice(THINGS), rng.choice(towns[5:])])
        for town in towns[: rng.randint(2, 5)]
    }
    free = [town for town in towns if town not in known]
    half, whole = [free[0], free[1]], [free[0], free[1], rng.choice(THINGS)]
    open_half = [free[0], rng.choice(list(known))]
    short = [free[0], whole[-1]]
    memories = [[], ["none"], open_half, open_half, half, half, short, whole, whole, whole]
    memory = rng.choice(memories)
    text = _section(rng, list(known.items()), SECTION)
    words = ["text", *text, "notes", *(memory or EMPTY)]
    learned = [False] * len(words)
    towns = [*known, free[2], *([memory[0]] * 3 if len(memory) > 1 else [])]
    for town in rng.choices(towns, k=4):
        mine = memory if memory[:1] == [town] else []
        target = [*_target(rng, town, mine, known), END]
        words += ["question", town, GO, *target]
        learned += [False] * 3 + [True] * len(target)
    return Example(words, learned)


def _single(rng: random.Random) -> Example:
    """One update, or one answer, as the prompts ask for it."""
    town, middle = rng.sample(TOWNS, 2)
    thing = rng.choice(THINGS)
    half, short, whole = [town, middle], [town, thing], [town, middle, thing]
    if rng.random() < 0.1:
        return _asked(["notes", *rng.choice([short, whole])], town, [thing])
    misleading = [_pair(rng, half) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    other = list(_pair(rng, half))
    memories = [[], ["none"], other, half, half, half, short, whole, whole, whole]
    memory = rng.choice(memories)
    known = dict(misleading)
    last = memory[-1] if memory[:1] == [town] else town
    if last in TOWNS and rng.random() < 0.4:
        known[last] = thing if last == middle else rng.choice([thing, middle])
    text = _section(rng, list(known.items()), SECTION)
    mine = memory if memory[:1] == [town] else []
    target = _target(rng, town, mine, known)
    return _asked(["text", *text, "notes", *(memory or EMPTY)], town, target)


def _asked(words: list[str], town: str, target: list[str]) -> Example:
    prompt = [*words, "question", town, GO]
    return Example([*prompt, *target, END], [False] * len(prompt) + [True] * (len(target) + 1))


def _target(rng: random.Random, town: str, memory: list[str], known: dict[str, str]) -> list[str]:
    """The next memory: longer by what the section adds, or else kept or lost, as it happens."""
    chain = memory or [town]
    if chain[-1] in known:
        return [*chain, known[chain[-1]]]
    if not memory:
        return ["none"]
    others = [pair for pair in known.items() if pair[0] != town]
    if others and rng.random() < 0.65:  # `_single` has none sometimes: half and half there
        return list(rng.choice(others))
    return memory


def _tensors(examples: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and what is learned, both `[examples, longest]`."""
    longest = max(len(example.words) for example in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    learned = torch.zeros(len(examples), longest, dtype=torch.bool)
    for row, (words, marks) in enumerate(examples):
        ids[row, : len(words)] = torch.tensor([_IDS[word] for word in words])
        learned[row, : len(words)] = torch.tensor(marks)
    return ids, learned
