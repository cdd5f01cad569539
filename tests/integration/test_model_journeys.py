"""What users do, with a real language model: `make test-model`.

Asserted is what the library guarantees whatever the model replies, never that it is clever.
"""

import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec

import pytest
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from pydantic import BaseModel
from real_models import MODELS, convert, get
from servers.llama_server import PROGRAM, llama_server

from memagent_graph import ConversationMemory, ReadingConfig, create_memagent, create_reading_tool
from memagent_graph.errors import ModelError, ResponseFormatError
from memagent_graph.readers.resolve import resolve_model
from memagent_graph.text.terms import specific_terms
from memagent_graph.text.tokens import load_tokenizer

NAME = os.environ.get("REAL_MODEL", "0.5b")
REAL = MODELS[NAME]
BUDGETS = {"chunk_tokens": 150, "memory_tokens": 64, "answer_tokens": 32}
CONFIG = ReadingConfig(**BUDGETS)
TALK = ReadingConfig(chunk_tokens=800, memory_tokens=96)
"""Room for the schema of a profile."""
QUESTION = "Who keeps the lighthouse of Skarvik?"
DOCUMENT = """\
Skarvik is a village of ninety houses on the north side of the fjord. Its school closed in 1974, \
and since then the children cross by ferry each morning. The ferry is called Tern, and it was \
built in Bergen by a yard that no longer exists.

The lighthouse of Skarvik was lit for the first time in 1868. Its lamp burned oil until 1931. \
Today the lamp is electric, but the tower still has a keeper, whose name is Ragna Solheim.

Bread is baked twice a week by the brothers Aune. They sell it from a van that stops at the \
church, at the pier and, if the road is free of snow, at the upper farms.

In the winter of 2003 a storm took the roof of the boathouse. The village paid for a new one with \
a lottery, whose first prize was a rowing boat. The boat was won by the doctor.

The church has a bell from 1702 that was cast in a town far inland and carried over the mountains \
on a sledge. It is rung by hand, and the ringer is paid in firewood.
"""
BREEDER = "I breed quokkas in Hobart, and my daughter is called Lotte."
ANN = {"user": "ann", "thread": "monday"}

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The base URL of llama.cpp's server."""
    if PROGRAM is None:
        pytest.skip("LLAMA_SERVER names no program: make test-model")
    log = tmp_path_factory.mktemp("logs") / "llama.log"
    with llama_server(get(REAL), log, "--ctx-size", "8192", "--parallel", "2") as url:
        yield url


@pytest.fixture(scope="module", params=["hf", "llama.cpp", "vllm"])
def engine(request):
    """The model in each engine that is there."""
    if request.param == "llama.cpp":
        url = request.getfixturevalue("server")
        yield resolve_model(f"openai:{REAL.name}", base_url=url, temperature=0.0)
    elif request.param == "hf":
        yield request.getfixturevalue("model")
    elif find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make test-model")
    else:
        options = {"max_model_len": 2048, "max_num_seqs": 4, "enforce_eager": True}
        model = resolve_model(f"vllm:{convert(REAL)}", **options)
        yield model
        model.close()


@pytest.fixture(scope="module")
def model():
    # A CPU that has no bfloat16 reads three times as fast in float32.
    model = resolve_model(f"hf:{convert(REAL)}", dtype="float32")
    yield model
    model.close()


def read(model, config=CONFIG, **asked):
    agent = create_memagent(model, config=config)
    return agent.invoke({"question": QUESTION, "document": DOCUMENT, **asked})


def check(out, model, document=DOCUMENT):
    tokens = load_tokenizer(getattr(model, "tokenizer", None)).count
    assert out["coverage"] == 1
    assert out["stopped"] == "end"
    assert out["answer"]
    assert tokens(out["memory"]) <= CONFIG.memory_tokens
    for place in [*out["evidence"], *out["citations"]]:
        assert 0 <= place["start"] < place["end"] <= len(document)
    assert all(place["text"] in out["memory"] for place in out["evidence"])
    assert out["usage"]["output_tokens"] <= out["usage"]["calls"] * CONFIG.memory_tokens


def test_each_engine_reads_a_document_within_its_budgets_and_twice_alike(engine):
    first, again = read(engine), read(engine)

    check(first, engine)
    assert (again["memory"], again["answer"]) == (first["memory"], first["answer"])


@pytest.mark.parametrize(
    "setting", [{"segments": 2}, {"skim": "lexical"}, {"update_gate": True}], ids=str
)
@pytest.mark.slow
def test_each_way_reads_the_whole_document_within_the_budget(setting, model):
    out = read(model, ReadingConfig(**BUDGETS, **setting))

    check(out, model)
    assert out["usage"].get("gated", 0) < out["usage"]["calls"]


@pytest.mark.parametrize("how", ["auto", "read"])
def test_a_tool_answers_an_agents_call(how, model):
    tool = create_reading_tool(
        model, sources={"village": DOCUMENT}, config=ReadingConfig(**BUDGETS, how=how)
    )
    arguments = {"questions": [QUESTION], "source": "village"}

    message = tool.invoke({"name": "read", "args": arguments, "id": "1", "type": "tool_call"})

    assert message.status == "success"
    assert message.content
    if message.artifact["stopped"] == "search":
        assert how == "auto"
        assert message.artifact["usage"]["calls"] == 1
        assert message.artifact["citations"]
    else:
        check(message.artifact, model)


class Lighthouse(BaseModel):
    keeper: str | None = None
    lit: int | None = None


def test_a_structured_answer_has_the_shape_or_there_is_an_error_of_its_own(engine):
    agent = create_memagent(engine, config=CONFIG, response_format=Lighthouse)

    with suppress(ResponseFormatError):
        out = agent.invoke({"question": QUESTION, "document": DOCUMENT})
        assert isinstance(out["structured_response"], Lighthouse)


def test_a_chatbot_finds_in_another_thread_what_its_user_said_and_nobody_else_did(model):
    memory = ConversationMemory(model, store=InMemoryStore(), config=TALK)

    memory.save([("human", BREEDER), ("ai", "How lovely.")], **ANN)

    [told] = memory.prompt("ann", about="What do I breed, and in which town?")
    assert "quokkas" in told.text
    assert "Hobart" in told.text
    assert memory.load("ann") == memory.history("ann")[0].text
    assert not memory.prompt("ben", about="What do I breed, and in which town?")


TURNS = (
    ("Good morning!", "", ""),
    ("My brother Tarek mends clocks in Ghent.", "What does my brother mend?", "clocks"),
    ("Can you explain what a fjord is?", "", ""),
    ("I moved to Oslo in April for a job at Yara.", "Where do I work?", "Yara"),
    ("I can't eat shellfish, please keep that in mind.", "What can't I eat?", "shellfish"),
    ("Thanks!", "", ""),
    ("My cat is called Pixel; she is six.", "What is my cat called?", "Pixel"),
    ("What should I read tonight?", "", ""),
    ("My flight to Lima leaves on 3 March.", "When does my flight leave?", "3 March"),
    ("Ok.", "", ""),
)
RECALL = """
import sys
from langgraph.store.sqlite import SqliteStore
from memagent_graph import ConversationMemory

with SqliteStore.from_conn_string(sys.argv[1]) as store:
    for question in sys.argv[2:]:
        print([told.text for told in ConversationMemory(store=store).prompt("ann", about=question)])
"""


@pytest.mark.slow
def test_what_was_said_in_twenty_turns_is_told_in_a_new_process_and_nothing_else(model, tmp_path):
    path = str(tmp_path / "memories.sqlite")
    said = " ".join(text for text, _, _ in TURNS)
    with SqliteStore.from_conn_string(path) as store:
        memory = ConversationMemory(model, store=store, config=TALK)
        for number, (text, _, _) in enumerate(TURNS * 2):
            memory.observe(text, user="ann", thread=f"thread {number // 5}")
            memory.observe([("ai", "I see.")], user="ann", thread=f"thread {number // 5}")
            memory.flush("ann")
        notes = memory.load("ann").splitlines()[1:]
    asked = [(question, fact) for _, question, fact in TURNS if question]
    command = [sys.executable, "-c", RECALL, path, *(question for question, _ in asked)]

    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    assert len(told) == len(asked)
    assert all(fact in one for (_, fact), one in zip(asked, told, strict=True))
    assert notes
    assert all({*specific_terms(line)} <= {*specific_terms(said)} | {"user"} for line in notes)


class Profile(BaseModel):
    daughter: str | None = None
    town: str | None = None


def test_a_profile_has_its_shape_or_stays_as_it_was(model):
    memory = ConversationMemory(model, store=InMemoryStore(), config=TALK, schema=Profile)

    try:
        memory.save([("human", BREEDER)], **ANN)
    except ModelError:
        assert not memory.history("ann")
    else:
        assert isinstance(memory.load(ANN["user"]), Profile)
        assert {entry.field for entry in memory.entries("ann")} <= set(Profile.model_fields)
