from __future__ import annotations

import pytest
import torch
from tiny_model import byte_pairs
from transformers import BertConfig, BertForSequenceClassification

from memagent_graph import create_memagent
from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.verify import CrossEncoder, resolve_verifier
from memagent_graph.readers.chat import ChatReader
from memagent_graph.testing import ScriptedChatModel

PASSAGE = "The harbour was closed for the winter."
TRUE = "The harbour was closed for the winter."
FALSE = "The harbour was never closed for the winter."
NLI = ["contradiction", "entailment", "neutral"]


def learn(folder, labels):
    """A classifier that has learned that statements with "never" are not supported.

    Args:
        folder: where to.
        labels: of its outputs; a single one for a sigmoid.
    """
    tokenizer = byte_pairs(600, max_length=64)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )
    model = BertForSequenceClassification(config)
    inputs = tokenizer([PASSAGE] * 2, [TRUE, FALSE], padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        logits = model(**inputs).logits
        if len(labels) == 1:
            wanted = torch.tensor([1.0, 0.0])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], wanted)
        else:
            right = next((n for n, label in enumerate(labels) if label == "entailment"), 1)
            wanted = torch.tensor([right, 0])
            loss = torch.nn.functional.cross_entropy(logits, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "labels", [["score"], NLI, ["LABEL_0", "LABEL_1"]], ids=["one", "nli", "two"]
)
async def test_a_model_gives_the_probability_that_a_passage_supports_a_statement(tmp_path, labels):
    encoder = CrossEncoder(str(learn(tmp_path, labels)))
    pairs = [(PASSAGE, TRUE), (PASSAGE, FALSE)] * 20

    await encoder.prepare()
    found = await encoder.probabilities(pairs)

    assert len(found) == 40
    assert all(likely > 0.9 for likely in found[::2])
    assert all(likely < 0.1 for likely in found[1::2])


async def test_a_passage_over_the_models_context_is_cut(tmp_path):
    encoder = CrossEncoder(str(learn(tmp_path, NLI)))

    [found] = await encoder.probabilities([(PASSAGE * 50, TRUE)])

    assert 0 <= found <= 1


def test_a_reading_drops_what_it_refuses(tmp_path):
    model = ScriptedChatModel(f"- {TRUE}\n- {FALSE}", "In winter.")
    agent = create_memagent(model, verify=f"cross-encoder/{learn(tmp_path, NLI)}")

    out = agent.invoke({"question": "When was it closed?", "document": PASSAGE})

    refused = f'1 statement of the memory has no support in what was read: "{FALSE}".'
    assert out["warnings"][0] == refused


async def test_labels_of_which_none_means_support_are_refused(tmp_path):
    encoder = CrossEncoder(str(learn(tmp_path, ["joy", "fear", "anger"])))

    with pytest.raises(ConfigurationError, match="has the labels joy, fear, anger, and none is"):
        await encoder.prepare()


async def test_a_model_that_is_not_there_is_known_before_anything_is_read(tmp_path):
    model = ScriptedChatModel(".")
    reader = ChatReader(model, verify=f"cross-encoder/{tmp_path / 'none'}")

    with pytest.raises(ConfigurationError, match="There is no cross-encoder"):
        await reader.prepare()


@pytest.mark.parametrize(
    ("given", "model"),
    [
        ("cross-encoder/nli-deberta-v3-base", "cross-encoder/nli-deberta-v3-base"),
        ("cross-encoder/someone/nli", "someone/nli"),
        ("cross-encoder//folder/nli", "/folder/nli"),
    ],
)
def test_names_are_hub_ids_and_folders(given, model):
    assert resolve_verifier(given).model == model
