import asyncio

import pytest
from documents import write_pages
from fixed_readers import ChainReader, Watched, Words, numbered
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import (
    MemAgentRetriever,
    MemoryBank,
    Prompts,
    ReadingConfig,
    corpus,
    create_reading_tool,
)
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.testing import ScriptedChatModel
from memagent_graph.text.files import open_source

CONFIG = ReadingConfig(chunk_tokens=50)
LEASE = "The rent is paid by Mr. Fox. " + numbered(80)


@pytest.fixture
def lease(tmp_path):
    file = tmp_path / "lease.txt"
    file.write_text(LEASE)
    return file


def call(question="Who pays the rent?", source="lease.txt", number=1):
    questions = [question] if isinstance(question, str) else question
    arguments = {"questions": questions, "source": source}
    return {"name": "read", "args": arguments, "id": str(number), "type": "tool_call"}


def test_it_answers_with_the_place_and_a_source_with_pages_is_cited_by_page(lease):
    written = [[(50, 700, "It rained.")], [(50, 700, "The rent is paid by Mr. Fox.")]]
    paged = write_pages(lease.with_suffix(".pdf"), written)

    by_line = create_reading_tool(sources=[lease]).invoke(call())
    by_page = create_reading_tool(sources=[paged]).invoke(call(source="lease.pdf"))

    assert by_line.content.startswith("The rent is paid by Mr. Fox.")
    assert "lease.txt:1" in by_line.content
    assert by_line.artifact["evidence"]
    assert by_line.artifact["coverage"] == 1
    assert by_page.content.endswith("It stands at lease.pdf, page 2.")
    [cited] = by_page.artifact["citations"]
    assert (cited["page"], cited["heading"]) == (2, None)


def agent_that_calls(*calls, tool, **options):
    model = ScriptedChatModel(AIMessage("", tool_calls=list(calls)), "Done.")
    return create_agent(model, [tool], **options)


def test_the_schema_tells_an_agent_what_it_may_ask(lease):
    tool = create_reading_tool(sources={"lease.txt": lease, "minutes": "They met."})

    schema = tool.tool_call_schema.model_json_schema()

    assert set(schema["properties"]) == {"questions", "source"}
    assert schema["properties"]["source"]["enum"] == ["lease.txt", "minutes"]
    assert all(field["description"] for field in schema["properties"].values())
    assert "question" in tool.description


def test_places_are_told_by_the_names_that_the_agent_knows_and_not_by_paths(lease):
    folder = lease.parent
    places = {
        "the lease": (lease, "the lease:1."),
        "record": ({"path": str(lease)}, "record:1."),
        "text": (LEASE, "text:1."),
        "letter": (Document(LEASE, metadata={"source": "letter of May"}), "letter of May:1."),
        "glob": (folder / "l*.txt", f"{folder.name}/lease.txt:1."),
        "all": (folder, f"{folder.name}/lease.txt:1."),
    }
    tool = create_reading_tool(sources={name: source for name, (source, _) in places.items()})

    told = {name: tool.invoke(call(source=name)) for name in places}

    for name, (_, place) in places.items():
        assert told[name].content.partition("It stands at ")[2] == place
        assert str(folder) not in told[name].content
    assert told["the lease"].artifact["citations"][0]["source"] == str(lease)
    both = tool.invoke(call(["Who pays rent?", "Who pays the rent?"], "the lease"))
    assert both.content.count("It stands at the lease:1.") == 2


@pytest.mark.parametrize(
    "source", ["secret.txt", "../secret.txt", "/etc/passwd", "lease.txt/../secret.txt", "", "*"]
)
def test_what_it_was_not_given_cannot_be_reached(source, lease):
    (lease.parent / "secret.txt").write_text("The password is swordfish.")
    tool = create_reading_tool(sources=[lease])

    message = tool.invoke(call("What is the password?", source))

    assert message.status == "error"
    assert "Choose one of: lease.txt" in message.content
    assert "swordfish" not in message.content


@pytest.mark.parametrize(
    ("question", "source", "says"),
    [
        ("Who?", "gone", "gone.txt"),
        (" ", "lease", "question is empty"),
        ([], "lease", "Give questions"),
    ],
)
def test_what_goes_wrong_is_a_message_that_an_agent_can_act_on(
    lease, tmp_path, question, source, says
):
    tool = create_reading_tool(sources={"lease": lease, "gone": tmp_path / "gone.txt"})

    message = tool.invoke(call(question, source))

    assert message.status == "error"
    assert says in message.content


async def test_sync_and_async_calls_of_one_agent_step_do_not_mix_under_a_checkpointer(lease):
    other = lease.with_name("other.txt")
    other.write_text("The rent is paid by Mrs. Owl. " + numbered(80))
    tool = create_reading_tool(sources=[lease, other], config=CONFIG)
    calls = [call(source=name, number=n) for n, name in enumerate(["lease.txt", "other.txt"] * 3)]
    thread = {"configurable": {"thread_id": "1"}}

    def answers(state):
        found = [m.content for m in state["messages"] if isinstance(m, ToolMessage)]
        return ["Fox" if "Fox" in text else "Owl" if "Owl" in text else text for text in found]

    asked = {"messages": [HumanMessage("Who pays?")]}
    agents = [agent_that_calls(*calls, tool=tool, checkpointer=InMemorySaver()) for _ in range(2)]
    sync = await asyncio.to_thread(agents[0].invoke, asked, thread)
    other_way = await agents[1].ainvoke(asked, thread)

    assert answers(sync) == answers(other_way) == ["Fox", "Owl"] * 3


def test_in_an_agent_memories_go_to_its_store_and_events_to_its_stream(lease):
    store, reader = InMemoryStore(), ChainReader()
    tool = create_reading_tool(reader, sources=[lease], config=CONFIG)
    asked = {"messages": [HumanMessage("Who pays?")]}

    agents = [agent_that_calls(call(), tool=tool, store=store) for _ in range(2)]
    events = [one for agent in agents for one in agent.stream(asked, stream_mode="custom")]

    assert [event["event"] for event in events].count("answer") == 2
    assert len(reader.spans) == len(set(reader.spans))  # the second asking read nothing again
    assert store.search(MemoryBank(store).namespace, limit=1)


def test_sources_are_one_path_or_several_with_distinct_names(tmp_path):
    schema = create_reading_tool(sources=tmp_path).args_schema.model_json_schema()
    assert schema["properties"]["source"]["const"] == tmp_path.name
    with pytest.raises(ConfigurationError, match="same name"):
        create_reading_tool(sources=[tmp_path / "a" / "x.txt", tmp_path / "b" / "x.txt"])
    with pytest.raises(ConfigurationError, match="at least one"):
        create_reading_tool(sources=[])


def test_several_questions_of_one_call_are_read_for_in_one_pass(lease, monkeypatch):
    opened = []
    monkeypatch.setattr(
        "memagent_graph.graph.nodes.open_source",
        lambda document: opened.append(document) or open_source(document),
    )
    lease.write_text(LEASE + "Next door lives Mrs. Owl.")
    tool = create_reading_tool(sources=[lease])

    message = tool.invoke(call(["Who pays the rent?", "Who lives next door?"]))

    assert opened == [lease]
    first, second = message.content.split("\n\nWho lives next door?\n")
    assert first.startswith("Who pays the rent?\nThe rent is paid by Mr. Fox.")
    assert "Mrs. Owl" in second
    assert message.content.count("It stands at") == 2
    assert [record["error"] for record in message.artifact["answers"]] == [None, None]


def test_a_question_that_fails_says_so_beside_the_others_answers():
    reader = Watched(lambda step: ModelError("down") if "rent" in step.question else None)
    tool = create_reading_tool(reader, sources={"lease": LEASE}, config=CONFIG)

    some = tool.invoke(call(["Who pays the rent?", "What is line 7?"], "lease"))
    none = tool.invoke(call(["Who pays the rent?", "How high is the rent?"], "lease"))

    assert some.status == "success"
    assert "down" in some.content.split("What is line 7?")[0]
    assert "down" not in some.content.split("What is line 7?")[1]
    assert none.status == "error"
    assert "down" in none.content


@pytest.mark.parametrize("kind", ["tool", "retriever"])
def test_prompts_tokenizer_config_and_namespace_shape_the_reading_of_a_tool_and_a_retriever(kind):
    store, model, text = InMemoryStore(), ScriptedChatModel("A note."), "a b c d e f " * 20
    shaped = {
        "config": ReadingConfig(chunk_tokens=50, segments=1),
        "prompts": Prompts(update="My {question}{memory}{chunk}", answer="My {question} {memory}"),
        "tokenizer": Words(),
        "namespace": ("ann", "memagent"),
        "store": store,
    }

    if kind == "tool":
        create_reading_tool(model, sources={"text": text}, **shaped).invoke(call("Who?", "text"))
    else:
        MemAgentRetriever(corpus=text, model=model, **shaped).invoke("Who?")

    assert len(model.prompts) == 3 + 1
    assert all("My" in text for text in model.prompts)
    assert {space[:2] for space in store.list_namespaces(limit=100)} == {("ann", "memagent")}
    with pytest.raises(TypeError, match="top_k"):
        create_reading_tool(sources={"text": "a"}, top_k=3)


MADE_UP = "Bo Tern pays 17 euros."


@pytest.mark.parametrize(
    ("answer", "ending"),
    [
        ("Mr. Fox", "Fox\n\nIt stands at text:1."),
        ("Bo Tern", "Do not rely on this answer: it is not supported by what was read."),
        (f"Mr. Fox pays. {MADE_UP}", f"Not supported by what was read: {MADE_UP}"),
    ],
)
def test_an_agent_is_told_what_of_an_answer_has_no_support(answer, ending):
    notes = "The rent is paid by Mr. Fox."
    model = ScriptedChatModel(notes, answer)
    config = ReadingConfig(how="read")
    tool = create_reading_tool(model, sources={"text": notes}, config=config)

    message = tool.invoke(call(source="text"))

    assert message.content.endswith(ending)


def test_a_corpus_gives_the_tool_its_sources(tmp_path):
    for name in ("lease.md", "draft.md"):
        (tmp_path / name).write_text(f"Ann signed the {name.removesuffix('.md')}.")

    read = create_reading_tool("extractive", sources=corpus(tmp_path, exclude="draft*"))

    name = f"{tmp_path.name}/lease.md"
    assert "Ann signed the lease." in read.invoke({"questions": ["Who signed?"], "source": name})
    assert "Choose one of" in read.invoke({"questions": ["Who?"], "source": "draft.md"})
    with pytest.raises(ConfigurationError, match="same name"):
        create_reading_tool(sources=corpus(["one text", "another text"]))


def test_an_agent_is_told_which_documents_of_a_folder_were_not_read(lease):
    (lease.parent / "old.txt").write_bytes(bytes(range(128, 256)) * 20)  # in no known encoding
    others = {"blank.txt": b" ", ".hidden": b"x", "code.bin": bytes(range(256))}
    for name, content in others.items():
        (lease.parent / name).write_bytes(content)
    tool = create_reading_tool(sources=[lease.parent])

    said = tool.invoke(call(source=lease.parent.name)).content

    assert said.endswith(f"Not read: {lease.parent.name}/old.txt.")
