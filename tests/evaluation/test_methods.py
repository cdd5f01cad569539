import asyncio
from string import ascii_lowercase

import pytest
from fixed_readers import ScriptedReader
from langchain_core.embeddings import Embeddings

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ConfigurationError, ModelError, TransientModelError
from memagent_graph.evaluation.methods import METHODS, make_method
from memagent_graph.readers.base import Answer, Usage
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

CONFIG = ReadingConfig(chunk_tokens=400, memory_tokens=100)
QUESTION = "When does the vault of Elk open?"
FACT = "The vault of Elk opens at 6:40."
FILLER = "It rained over the harbour again. "


class Listener(ScriptedReader):
    """Answers with what it was shown, and remembers it."""

    def __init__(self):
        super().__init__()
        self.shown = []

    async def respond(self, question, memory, *, config=None):
        self.shown.append(memory.text)
        return Answer(f"<{len(self.shown)}>", "", usage=Usage(1, 10, 2))


def outcome(name, text, reader=None, config=CONFIG):
    reader = reader or resolve_reader("extractive", config=config)
    return asyncio.run(make_method(name, reader, config)(QUESTION, TextSource(text)))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_finds_what_one_prompt_holds(name):
    assert FACT in outcome(name, f"{FILLER * 10}\n\n{FACT}\n\n{FILLER * 10}").answer


@pytest.mark.parametrize("name", METHODS)
def test_in_the_middle_of_a_long_text_all_but_truncation_find_it(name):
    text = f"{FILLER * 500}\n\n{FACT}\n\n{FILLER * 500}"

    assert (FACT in outcome(name, text).answer) == (name != "truncate")


def test_memagent_tells_the_memory_after_each_chunk():
    found = outcome("memagent", f"{FILLER * 200}\n\n{FACT}\n\n{FILLER * 200}")

    having = [FACT in memory for memory in found.memories]
    assert having == sorted(having)
    assert 0 < sum(having) < len(having)
    assert found.usage.calls == len(having) + 1


def test_truncation_shows_both_ends_and_no_more_than_a_prompt():
    outcome("truncate", f"begin {FILLER * 900} end", reader := Listener())

    (shown,) = reader.shown
    assert (shown[:5], shown[-3:]) == ("begin", "end")
    assert EstimatingTokenizer().count(shown) <= 500


def test_map_reduce_answers_from_answers_until_one_is_left():
    found = outcome("map_reduce", FILLER * 900, reader := Listener())

    number = len(reader.shown)
    assert reader.shown[-1].startswith("<1>\n<2>")
    assert (found.answer, found.usage) == (f"<{number}>", Usage(number, 10 * number, 2 * number))


def test_refining_shows_the_last_answer_with_the_next_chunk():
    outcome("refine", FILLER * 200, reader := Listener())

    assert "".join(shown.partition("\n\n")[2] or shown for shown in reader.shown) == FILLER * 200
    assert [shown.partition("\n")[0] for shown in reader.shown[1:3]] == ["<1>", "<2>"]


def test_a_call_that_fails_again_and_again_or_for_good_is_an_error(openai_server):
    config = CONFIG.model_copy(update={"retry_interval": 0.001, "max_attempts": 3})
    reader = served(openai_server, config)

    openai_server.script = [500] * 9
    with pytest.raises(ModelError, match="failed after 3 attempts") as away:
        outcome("bm25", FILLER, reader, config)
    openai_server.script = [401]
    with pytest.raises(ModelError, match="credentials"):
        outcome("bm25", FILLER, reader, config)

    assert not isinstance(away.value, TransientModelError)
    assert len(openai_server.requests) == 3 + 1


def served(openai_server, config=CONFIG):
    return resolve_reader("openai:small", config=config, base_url=openai_server.base_url)


def told(openai_server):
    return [body["messages"][-1]["content"] for body in openai_server.requests]


@pytest.mark.parametrize(("name", "kind"), [
    ("whole", "a document"), ("truncate", "the beginning and the end"), ("bm25", "a search found"),
    ("map_reduce", "one part of a document"), ("refine", "the next part"),
])  # fmt: skip
def test_a_model_is_told_what_kind_of_text_it_answers_from(name, kind, openai_server):
    outcome(name, FILLER * 200, served(openai_server))

    asked = told(openai_server)
    assert any(kind in prompt for prompt in asked)
    assert not any("notes" in prompt for prompt in asked)
    assert all(QUESTION in prompt and r"\boxed{}" in prompt for prompt in asked)


def test_a_benchmark_s_own_prompt_shows_the_whole_document(openai_server):
    template = "Memorize.\n{memory}\n{question} It is:"
    method = make_method("whole", served(openai_server), CONFIG, template)

    asyncio.run(method("When?", TextSource("At noon.")))

    assert told(openai_server) == ["Memorize.\nAt noon.\nWhen? It is:"]


class Letters(Embeddings):
    def embed_query(self, text):
        return [float(text.lower().count(letter)) for letter in ascii_lowercase]

    def embed_documents(self, texts):
        return [*map(self.embed_query, texts)]


def test_embeddings_choose_the_passages_that_are_nearest(monkeypatch):
    reader = Listener()
    text = f"{FILLER * 300}\n\n{'zzz xxx qqq. ' * 40}\n\n{FILLER * 300}"
    monkeypatch.setattr("langchain.embeddings.init_embeddings", lambda _: Letters())

    way = make_method("embeddings:letters", reader, CONFIG)
    found = asyncio.run(way("zzz xxx qqq", TextSource(text)))

    assert found.answer == "<1>"
    assert "zzz xxx qqq" in reader.shown[0]
    assert EstimatingTokenizer().count(reader.shown[0]) <= 500


@pytest.mark.parametrize("name", ["embeddings:", "embeddings:nobody:none"])
def test_embeddings_that_there_are_not_are_said(name):
    with pytest.raises(ConfigurationError):
        make_method(name, Listener(), CONFIG)
