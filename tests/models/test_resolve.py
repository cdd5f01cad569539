import sys
import types

import pytest
from langchain.chat_models import init_chat_model

from memagent_graph import ReadingConfig
from memagent_graph.errors import ConfigurationError, MissingDependencyError
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.extractive import ExtractiveReader
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.testing import ScriptedChatModel

CONFIG = ReadingConfig()


def test_without_a_name_it_is_the_built_in_reader_or_what_the_environment_names(monkeypatch):
    monkeypatch.delenv("MEMAGENT_MODEL", raising=False)
    assert isinstance(resolve_reader(None, config=CONFIG), ExtractiveReader)

    monkeypatch.setenv("MEMAGENT_MODEL", "openai:gpt-4o")
    found = resolve_reader(None, config=CONFIG)

    assert isinstance(found, ChatReader)
    assert isinstance(found.model, ChatEndpoint)
    assert (found.identity.name, found.model.model) == ("openai:gpt-4o", "gpt-4o")


def test_what_is_no_model_is_refused():
    with pytest.raises(ConfigurationError, match="not int"):
        resolve_reader(7, config=CONFIG)


def test_another_provider_without_langchain_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "langchain", None)
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)

    with pytest.raises(MissingDependencyError, match=r"memagent-graph\[langchain\]"):
        resolve_reader("anthropic:claude", config=CONFIG)


def test_the_address_reaches_the_models_of_other_providers(monkeypatch):
    asked = {}

    def init_chat_model(model, **options):
        asked[model] = options
        return ScriptedChatModel("a")

    langchain = types.ModuleType("langchain.chat_models")
    langchain.init_chat_model = init_chat_model
    monkeypatch.setitem(sys.modules, "langchain", types.ModuleType("langchain"))
    monkeypatch.setitem(sys.modules, "langchain.chat_models", langchain)

    resolve_reader("ollama:small", config=CONFIG, base_url="http://localhost:1")
    resolve_reader("anthropic:claude", config=CONFIG)

    assert asked == {"ollama:small": {"base_url": "http://localhost:1"}, "anthropic:claude": {}}


@pytest.mark.parametrize("name", ["gpt-4o", "o3-mini", "chatgpt-4o-latest"])
def test_a_model_of_openai_needs_no_provider_before_its_name(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)

    found = resolve_reader(name, config=CONFIG)

    assert isinstance(found.model, ChatEndpoint)
    assert (found.identity.name, found.model.model) == (f"openai:{name}", name)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: model.with_retry(),
        lambda model: model.with_fallbacks([model]),
        lambda model: model.with_retry().with_fallbacks([model]),
        lambda model: model.with_config(tags=["notes"]),
        lambda model: model.bind(stop=["."]),
    ],
)
async def test_a_chat_model_is_found_in_what_langchain_wraps_round_it(wrap):
    found = resolve_reader(wrap(ScriptedChatModel("yes")), config=CONFIG)

    assert isinstance(found, ChatReader)
    assert found.model.invoke("?").text == (await found.model.ainvoke("?")).text == "yes"


def test_a_configurable_model_is_called_with_the_configuration_of_the_run(monkeypatch):
    chosen = []

    def choose(self, config=None):
        chosen.append((config or {}).get("configurable"))
        return ScriptedChatModel("yes")

    model = init_chat_model(configurable_fields="any")
    monkeypatch.setattr(type(model), "_model", choose)
    found = resolve_reader(model, config=CONFIG)

    assert found.model.invoke("?", {"configurable": {"model": "one"}}).text == "yes"
    assert chosen[-1]["model"] == "one"
