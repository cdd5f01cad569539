"""A small language, a model of 0.14 M parameters that begins to read it, and how it is supervised.

A document is a row of sections of 20 words. `lamo tela ;` says what belongs to the town lamo: the
thing tela, or another town whose own thing is then asked for (two hops). Of several such pairs
about a town the latest counts. `lamo not rina ;` says nothing about what belongs to it, nor does
a pair about another town, even one that leads to lamo. The question is a town. The notes are the
chain as far as it is known: `lamo gido tela`.

What is learned from and what is asked later share noise and marks alone: every town and thing of
a training document is of one half of the words, and every one of an evaluation of the other.

The warm-up is of the format alone: to look a town up in a section, to write and extend notes as a
chain, and to answer from them. Where notes are at stake, every reply that the format knows is shown
equally often, whatever would be right: the notes as they were, the notes with the newer pair, a
pair about another town. What to keep and what to overwrite is thus left for reinforcement learning
to find out, or for labels to show.
"""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise
from time import process_time
from typing import TYPE_CHECKING, NamedTuple

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from memagent_graph import Prompts
from memagent_graph.evaluation.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

SECTION = 20
"""Words, which are tokens here, of a section, and so of a chunk."""
LONGEST = 3
"""Words of the notes, at most."""
NOTHING, NOT, CLOSE = "none", "not", ";"
_NOISE = """
and but then when where while with without over under near far up down left right rain wind snow
sun moon star hill lake road bridge house door window table chair lamp
"""
NOISE = _NOISE.split()


class Words(NamedTuple):
    """Words that a document talks about."""

    towns: list[str]
    things: list[str]


def _make_words(count: int) -> tuple[Words, Words]:
    """Two sets of so many towns, which end in o, and things, which end in a; no word is in both."""
    rng = random.Random("words")
    starts = [one + vowel for one in "bdfgklmnprstvz" for vowel in "aeiu"]
    middles = "bdfgklmnprstvz"
    stems = rng.sample([start + middle for start in starts for middle in middles], 2 * count)
    towns, things = [stem + "o" for stem in stems], [stem + "a" for stem in stems]
    rng.shuffle(things)
    half = slice(count), slice(count, None)
    first, second = (Words(towns[one], things[one]) for one in half)
    return first, second


TRAINING, HELD_OUT = _make_words(320)

Pair = tuple[str, str]


def notes_after(question: str, notes: Sequence[str], pairs: Mapping[str, str]) -> list[str]:
    """The right notes after a section: the chain from the question, its latest pairs first.

    Args:
        question: the town that is asked about.
        notes: before the section.
        pairs: what the section says of towns.
    """
    before = dict(pairwise(known_chain(question, notes)))
    chain = [question]
    while len(chain) < LONGEST and (found := pairs.get(chain[-1]) or before.get(chain[-1])):
        chain.append(found)
    return chain if len(chain) > 1 else [question, NOTHING]


def known_chain(question: str, notes: Sequence[str]) -> list[str]:
    """What notes say of a town: nothing, or a chain that begins with it."""
    told = notes[:1] == [question] and notes[1:] != [NOTHING]
    return [*notes] if told else []


def write_section(rng: random.Random, statements: Sequence[Sequence[str]]) -> list[str]:
    """Statements strewn among noise."""
    room = SECTION - sum(len(one) + 1 for one in statements)
    parts = [[word] for word in rng.choices(NOISE, k=room)]
    parts += [[*one, CLOSE] for one in statements]
    rng.shuffle(parts)
    return [word for part in parts for word in part]


def misleading(
    rng: random.Random, words: Words, chain: Sequence[str], most: int = 2
) -> tuple[dict[str, str], list[tuple[str, ...]]]:
    """What a section says that is beside the question: pairs of other towns, and what is not so.

    Args:
        rng: chooses.
        words: to choose from.
        chain: towns that the pairs are not about; what is not so is about one of them.
        most: pairs about other towns, of which there is at least one.
    """
    others = [town for town in words.towns if town not in chain]
    pairs = {
        town: rng.choice([*rng.choices(words.things, k=2), rng.choice(others), rng.choice(chain)])
        for town in rng.sample(others, rng.randint(1, most))
    }
    denied = [(rng.choice(chain), NOT, rng.choice(words.things))] if rng.random() < 0.3 else []
    return pairs, denied


def sample(
    index: int,
    *,
    hops: int,
    chunks: int,
    seed: int,
    words: Words = TRAINING,
) -> Sample:
    """A question over a document of `chunks` sections.

    Each pair that the answer takes has, in half of all documents, an earlier one about the same
    town that no longer counts.

    Args:
        index: of the sample.
        hops: pairs that the answer takes.
        chunks: sections.
        seed: another one makes other samples.
        words: that the document is about.
    """
    rng = random.Random(f"{seed} {hops} {chunks} {index}")
    chain = rng.sample(words.towns, hops)
    thing = rng.choice(words.things)
    told: list[Pair] = []
    for town, value in zip(chain, [*chain[1:], thing], strict=True):
        kind = words.things if value == thing else words.towns
        if rng.random() < 0.5:
            told.append((town, rng.choice([one for one in kind if one not in {*chain, thing}])))
        told.append((town, value))
    places = dict(zip(sorted(rng.sample(range(chunks), len(told))), told, strict=True))
    state = rng.getstate()

    def pieces() -> Iterator[str]:
        fresh = random.Random()
        fresh.setstate(state)
        for place in range(chunks):
            others, denied = misleading(fresh, words, chain)
            pair = places.get(place)
            statements = [*others.items(), *denied, *([pair] if pair else [])]
            text = " ".join(write_section(fresh, statements))
            yield text + "\n"

    return Sample(
        id=f"{hops}-hop/{chunks}/{index}",
        task=f"{hops}-hop",
        length=chunks * SECTION,
        question=chain[0],
        answers=(thing,),
        metric="any",
        pieces=pieces,
    )


def pairs_of(section: str) -> dict[str, str]:
    """What a section says of towns, read by rule; the last of several about one counts."""
    parts = [part.split() for part in section.split(f" {CLOSE}")]
    towns = {*TRAINING.towns, *HELD_OUT.towns}
    # Noise may stand before a pair, and never within.
    found = [part[-2:] for part in parts[:-1] if len(part) > 1]
    return {town: value for town, value in found if town in towns}


# What is shown

PAD, END, GO = "<pad>", "<end>", "<go>"
EMPTY = ["(empty:", "this", "is", "the", "first", "section)"]  # as the prompts say it


class Example(NamedTuple):
    """Words of a sequence, and which of them are learned."""

    words: list[str]
    learned: list[bool]


def labelled(samples: Iterator[Sample]) -> Iterator[Example]:
    """Each update of each document with the right notes before and after it, and the answer."""
    for one in samples:
        notes: list[str] = []
        for piece in one.pieces():
            before = notes or EMPTY
            notes = notes_after(one.question, notes, pairs_of(piece))
            prompt = ["text", *piece.split(), "notes", *before, "question", one.question]
            yield ask(prompt, notes)
        yield ask(["notes", *notes, "answer", one.question], [one.answers[0]])


def recall_chains(rng: random.Random) -> Example:
    """Several pairs, then several towns, each with where it leads to, or that this is unknown."""
    towns = rng.sample(TRAINING.towns, 4)
    known = {
        town: rng.choice([*rng.choices(TRAINING.things, k=2), *rng.choices(towns, k=2)])
        for town in towns[:3]
    }
    denied = (rng.choice(towns), NOT, rng.choice(TRAINING.things))
    words = write_section(rng, [*known.items(), denied])
    shown = [Example([*words, "question"], [False] * (len(words) + 1))]
    for town in rng.choices([*towns, rng.choice(TRAINING.towns)], k=12):
        _, *chain = notes_after(town, [], known)
        shown.append(Example([town, *chain, CLOSE], [False, *[True] * (len(chain) + 1)]))
    return _join(shown)


def show_several(rng: random.Random) -> Example:
    """Several questions: about the same notes and section, or each about notes of its own."""
    if rng.random() < 0.15:
        return _join([_answer(rng) for _ in range(6)])
    chain, notes, text, pairs = _update(rng)
    asked = [*pairs, *chain[:1] * 3, rng.choice(TRAINING.towns)]
    first, *others = [chain[0], *rng.choices(asked, k=5)]
    words = ["text", *text, "notes", *(notes or EMPTY)]
    examples = [ask([*words, "question", first], _reply(rng, first, notes, pairs))]
    examples += [ask(["question", town], _reply(rng, town, notes, pairs)) for town in others]
    return _join(examples)


def _answer(rng: random.Random) -> Example:
    """An answer from notes of one hop or of two."""
    town, middle, thing = [*rng.sample(TRAINING.towns, 2), rng.choice(TRAINING.things)]
    notes = rng.choice([[town, thing], [town, middle, thing]])
    return ask(["notes", *notes, "answer", town], [thing])


def _join(examples: Sequence[Example]) -> Example:
    return Example(
        [word for example in examples for word in example.words],
        [learned for example in examples for learned in example.learned],
    )


def _update(
    rng: random.Random,
) -> tuple[list[str], list[str], list[str], dict[str, str]]:
    """A chain, notes that may hold some of it, a section, and what that says of towns."""
    towns, things = TRAINING
    chain = [*rng.sample(towns, 2), rng.choice(things)]
    town, middle, thing = chain
    other = [rng.choice(towns), rng.choice([rng.choice(towns), rng.choice(things)])]
    half = chain[:2]
    notes = rng.choice([[], [town, NOTHING], other, half, half, half, [town, thing], chain])
    pairs, denied = misleading(rng, TRAINING, half)
    about, kind = rng.choice([(town, towns), (town, things), (middle, things), (middle, things)])
    if rng.random() < 0.8:
        pairs[about] = rng.choice(kind)
    text = write_section(rng, [*pairs.items(), *denied])
    return chain, notes, text, pairs


def _reply(rng: random.Random, town: str, notes: Sequence[str], pairs: dict[str, str]) -> list[str]:
    """Notes on a town: looked up or extended, or else any that the format knows."""
    right = notes_after(town, notes, pairs)
    kept = known_chain(town, notes)
    if not kept or (right[: len(kept)] == kept and right != kept):
        return right
    others = [[*pair] for pair in pairs.items() if pair[0] != town]
    known = [*others, [*notes], *([right] if right != notes else [])]
    return rng.choice(known)


def ask(prompt: Sequence[str], reply: Sequence[str]) -> Example:
    """A prompt, and the reply to learn."""
    begun = [False] * (len(prompt) + 1)
    return Example([*prompt, GO, *reply, END], begun + [True] * (len(reply) + 1))


# The model

MARKS = ["notes", "text", "question", "answer", NOTHING, NOT, CLOSE]
GATES = ["unchanged", "ENOUGH:", "LOOK", "BACK:", "\nENOUGH:", "\nLOOK BACK:"]
"""Words of gates; those that are gone stay a part of the models that were measured."""
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
