from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from memagent_graph.text.tokens import EstimatingTokenizer, HuggingFaceTokenizer

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# How Qwen 2 and 3, and GPT-4o, split a text before they look for tokens.
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITTERS = {
    "gpt-2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None),
    "qwen": ([pre_tokenizers.Split(Regex(QWEN), "isolated"), BYTES], normalizers.NFC()),
    "gpt-4o": ([pre_tokenizers.Split(Regex(GPT_4O), "isolated"), BYTES], None),
    "bytes": (BYTES, None),
    "metaspace": (pre_tokenizers.Metaspace(), None),
    "words": (pre_tokenizers.BertPreTokenizer(), normalizers.Lowercase()),
    "none": (None, normalizers.Strip()),
}
CORPUS = ["The fox and the dog saw a door, and said: it's the Door! " * 20, "ab, cd.\nThe-fox"]
WORDS = ["The fox", " and", " the", " Door", "naïve", "<|end|>"]
LETTERS = ["é", "e\u0301", "漢字", "1", "x", "X", "_"]
SIGNS = [",", ".", "\n", "\n\n", " ", "  ", "'s", "'T", "-", '"', "?!", "...", "\t", ": "]
TEXTS = st.lists(st.sampled_from(WORDS + LETTERS + SIGNS) | st.text(max_size=6), max_size=40).map(
    lambda parts: "".join(parts).encode("utf-8", "ignore").decode()
)


def trained(name):
    splitter, normalizer = SPLITTERS[name]
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    if splitter is not None:
        sequence = pre_tokenizers.Sequence(splitter) if isinstance(splitter, list) else splitter
        backend.pre_tokenizer = sequence
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], show_progress=False)
    )
    backend.add_special_tokens(["<|end|>"])
    return backend


BACKENDS = {name: trained(name) for name in SPLITTERS}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLITTERS)
@example(text="The fox's door, and the-fox. \n\nThe  Door<|end|> and")
@given(text=TEXTS)
def test_tokens_are_those_of_the_backend(name, text):
    backend = BACKENDS[name]
    tokenizer = HuggingFaceTokenizer(backend)

    ids = tokenizer.encode(text)

    assert ids == backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.count(text) == len(ids)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLITTERS)
@given(text=TEXTS, budget=st.integers(1, 50))
def test_a_prefix_ends_where_the_token_after_the_budget_begins(name, text, budget):
    backend = BACKENDS[name]

    length = HuggingFaceTokenizer(backend).prefix(text, budget)

    encoding = backend.encode(text, add_special_tokens=False)
    over = encoding.token_to_chars(budget) if budget < len(encoding) else None
    assert length == (over[0] if over else len(text))


@pytest.mark.parametrize(
    ("text", "tokens"),  # the mean of Qwen's count and cl100k's
    [
        ("48213957 2026 73018264 " * 20, 340),
        ("┌──────┬────────┐\n│ a    │ b      │\n├──────┼────────┤\n" * 20, 500),
        ("∀ε>0 ∃δ>0: |x−a|<δ ⇒ |f(x)−f(a)|<ε. A ⊆ B ∧ B ⊂ C → A ∪ B ≠ ∅. " * 10, 472),
        ("सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता " * 10, 616),
        ("மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர் " * 10, 650),
        ("ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః స్వతంత్రులును " * 10, 1061),
        ("Le\u0301on a\u0300 cafe\u0301 nai\u0308ve re\u0301sume\u0301 " * 20, 321),
        ("ყველა ადამიანი იბადება თავისუფალი და თანასწორი " * 10, 675),
    ],
)
def test_the_estimate_is_near_for_digits_symbols_and_other_scripts(text, tokens):
    assert tokens / 1.5 < EstimatingTokenizer().count(text) < tokens * 1.5


@pytest.mark.parametrize("name", SPLITTERS)
def test_a_lone_surrogate_counts_as_the_sign_that_stands_for_it(name):
    tokenizer = HuggingFaceTokenizer(BACKENDS[name])
    text = "The keeper \ud83d is Odo. \udc00\ud800"
    shown = "The keeper \ufffd is Odo. \ufffd\ufffd"

    assert tokenizer.encode(text) == tokenizer.encode(shown)
    assert [tokenizer.prefix(text, n) for n in range(9)] == [
        tokenizer.prefix(shown, n) for n in range(9)
    ]
