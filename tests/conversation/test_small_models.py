"""A small model folds a conversation by choosing among what users say."""

import json
from math import log
from threading import Barrier

import pytest
from conversations import dated, prompted
from langchain_core.messages import AIMessage
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from memagent_graph import ConversationMemory, Facts, ReadingConfig
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.testing import ScriptedChatModel


class Small(ScriptedChatModel):
    model_name: str = "tiny-0.5b-instruct"
    continues: bool = False


class Judge(Small):
    """One that takes each text for a fact with the given chance, those that it is not given never.

    It is asked in plain texts, as by llama.cpp.
    """

    continues: bool = True

    def __init__(self, chances, **fields):
        def reply(messages):
            judged = messages[-1].text.splitlines()[-1].strip('"')
            return likely("yes" if judged in chances else "no", chances.get(judged, 1.0))

        super().__init__(reply, **fields)


def likely(text, chance):
    found = {"logprobs": [log(chance)]}
    return AIMessage(text, response_metadata={"generation": found})


IDS = {"user": "ann", "thread": "monday"}


def fold(model, *said, **options):
    """A memory that has folded what was said; messages of it have numbers from 0 as ids."""
    memory = ConversationMemory(model, **options)
    messages = [dated(m, key=f"{n}") if isinstance(m, str) else m for n, m in enumerate(said)]
    memory.save(messages, **IDS)
    return memory


def judge(said, chances, memory_tokens=400, **options):
    config = ReadingConfig(memory_tokens=memory_tokens)
    return fold(model := Judge(chances), *said, config=config, **options), model


SAID = ["My sister Edda breeds goats in Husum.", "I moved to Berlin in May for a job at Siemens."]
OSLO = "I moved to Oslo in April."
REMARK = "The weather in Husum was dreadful."


def test_what_the_model_takes_for_facts_is_kept_word_for_word_for_one_token_each():
    memory, model = judge([SAID[0], f"{REMARK} {SAID[1]}"], dict.fromkeys(SAID, 0.9))

    assert memory.load("ann").splitlines() == ["5 Mar 2026", *SAID]
    judged = [prompt.splitlines()[-1].strip('"') for prompt in model.prompts]
    assert judged == [SAID[0], REMARK, SAID[1]]
    assert {(call.options["max_tokens"], call.options["plain"]) for call in model.calls} == {
        (1, True)
    }


def test_the_likeliest_stay_where_there_is_no_room_and_are_judged_once_by_a_process():
    store, chances = InMemoryStore(), {SAID[0]: 0.9, SAID[1]: 0.6, OSLO: 0.7}
    memory, model = judge(SAID, chances, memory_tokens=24, store=store)
    memory.save([dated(OSLO, key="later")], **IDS)
    assert (memory.load("ann").splitlines()[1:], len(model.calls)) == (SAID[:1], 3)

    again = [dated(SAID[1], key="again")]
    memory, model = judge(again, chances, memory_tokens=24, store=store)

    assert (memory.load("ann").splitlines()[1:], len(model.calls)) == (SAID[:1], 2)


def test_statements_are_judged_at_once_after_the_first_has_filled_the_servers_cache():
    said = [f"I lived in {town} for a year." for town in ("Oslo", "Kiel", "Husum", "Berlin")]
    both = Barrier(len(said) - 1)

    def reply(messages):
        if not messages[-1].text.endswith(f'"{said[0]}"'):
            both.wait(timeout=10)  # raises if a call waits for the end of another
        return AIMessage("yes")

    assert fold(Small(reply, continues=True), *said).load("ann").splitlines()[1:] == said


NO_STATEMENTS = {
    "questions": "What is the capital of Peru?", "requests": "Please explain what a volcano is.",
    "greetings": "Hello, how are you?", "a quotation": f"> {SAID[1]}",
}  # fmt: skip


@pytest.mark.parametrize("said", NO_STATEMENTS.values(), ids=NO_STATEMENTS)
def test_no_call_is_made_where_users_state_nothing_of_their_own(said):
    memory, model = judge([said, AIMessage(SAID[0], id="2")], dict.fromkeys(SAID, 0.9))

    assert (memory.load("ann"), model.calls) == ("", [])


def test_where_a_model_continues_no_texts_the_newest_statements_are_kept_and_a_warning_says_so():
    memory = fold(model := Small("yes"), *SAID)

    assert (memory.load("ann").splitlines()[1:], model.calls) == (SAID, [])
    assert "continues no plain texts" in memory.history("ann")[0].warnings[0]


@pytest.mark.parametrize("status", [404, 401])
def test_a_server_without_plain_texts_is_asked_once(openai_server, status):
    openai_server.script = [status]
    model = ChatEndpoint(model="tiny-0.5b", base_url=openai_server.base_url)

    if status == 401:
        with pytest.raises(ModelError):
            fold(model, *SAID)
    else:
        assert fold(model, *SAID).load("ann").splitlines()[1:] == SAID
    assert openai_server.paths == ["/v1/completions"]


LOGPROBS = {
    "llama.cpp": {"content": [{"token": " yes", "logprob": -0.1}]},
    "vLLM": {"tokens": [" yes"], "token_logprobs": [-0.1]},
}


@pytest.mark.parametrize("logprobs", LOGPROBS.values(), ids=LOGPROBS)
def test_an_endpoint_continues_a_text_and_reports_how_likely_the_continuation_is(
    openai_server, logprobs
):
    openai_server.reply = str
    openai_server.script = [{"text": " yes", "message": None, "logprobs": logprobs}]
    model = ChatEndpoint(model="small", base_url=openai_server.base_url)

    reply = model.invoke("One, two,", plain=True, max_tokens=1)

    assert (reply.text, reply.response_metadata["generation"]["logprobs"]) == (" yes", [-0.1])
    (request,) = openai_server.requests
    assert (request["prompt"], "messages" in request) == ("One, two,", False)


def test_each_statement_is_of_its_speaker():
    said = {"Bo": "I live in Kiel.", "Cy": "I live in Husum."}
    messages = [dated(text, name=name) for name, text in said.items()]

    memory, _ = judge(messages, dict.fromkeys(said.values(), 0.9))

    kept = [line for name, text in said.items() for line in (f"@{name}", "5 Mar 2026", text)]
    assert memory.load("ann").splitlines() == kept


def test_statements_with_words_of_never_are_left_out():
    memory, _ = judge(SAID, dict.fromkeys(SAID, 0.9), never="jobs")

    assert memory.load("ann").splitlines()[1:] == SAID[:1]
    with pytest.raises(ConfigurationError, match="never="):
        judge(SAID, {}, never="it")


def test_a_larger_model_that_notes_nothing_leaves_the_sentences_of_the_user():
    memory = fold(model := Small("unchanged", model_name="large"), *SAID)

    assert memory.load("ann").splitlines() == ["5 Mar 2026", *SAID]
    assert "noted nothing" in memory.history("ann")[0].warnings[0]
    assert len(model.calls) == 1


def test_a_larger_model_that_copies_the_conversation_is_asked_as_small_ones_are():
    copied = f"[2026-03-05 10:00+00:00] user: {SAID[0]}\n[2026-03-05] assistant: I see."
    memory = fold(model := Small(copied, model_name="large"), SAID[0], AIMessage("I see.", id="1"))

    assert memory.load("ann").splitlines() == ["5 Mar 2026", SAID[0]]
    assert "copied the conversation" in memory.history("ann")[0].warnings[0]
    memory.save([dated(SAID[1], key="2")], **IDS)
    assert len(model.calls) == 1


def test_a_statement_that_a_model_lists_as_to_be_forgotten_stays():
    notes = f"2026-03-05: {SAID[0]}\n2026-03-05: {SAID[1]}"
    memory = fold(Small(f"{notes}\nForget: {SAID[1]}", model_name="large"), *SAID)

    assert memory.load("ann") == notes


def test_facts_of_a_small_model_that_no_user_states_are_left_out():
    model = Small("Hello | speaker | assistant\nEdda | breeds goats in | Husum")

    memory = fold(model, "Hello!", SAID[0], schema=Facts)

    assert fold(model, "Hello, how are you?", schema=Facts).load("ann") == ""
    assert memory.load("ann").startswith("Edda | breeds goats in | Husum")
    assert "1 (said by no user)" in memory.history("ann")[0].warnings[0]


QUOTED = {
    "quotation": "My landlord wrote:\n> I moved to Rome in May.",
    "fence": "Is this right?\n```\nI moved to Rome in May.\n```",
    "open fence": "Is this right?\n~~~ text\nI moved to Rome in May.",
    "table": "| who | what |\n| I | moved to Rome in May |",
    "mail": "Please answer this.\nFrom: Bo <bo@x.org>\nSubject: Rome\n\nI moved to Rome in May.",
}


@pytest.mark.parametrize("said", QUOTED.values(), ids=QUOTED)
@pytest.mark.parametrize("name", ["tiny-0.5b-instruct", "large"])
def test_what_a_user_marks_as_quoted_becomes_no_fact_of_theirs(said, name):
    reply = "user | moved to | Rome | since May\nEdda | breeds goats in | Husum"
    model = Small(reply, model_name=name)
    memory = fold(model, f"{SAID[0]}\n{said}", schema=Facts)

    assert memory.load("ann").startswith("Edda | breeds goats in | Husum")
    assert "Rome" not in memory.load("ann")
    assert "1 (only quoted by a user)" in memory.history("ann")[0].warnings[0]
    assert "moved to Rome" in prompted(memory, "Rome")  # word for word, as it was said


def test_what_a_user_says_and_quotes_is_a_fact():
    said = "I moved to Rome in May.\n> I moved to Rome in May."

    memory = fold(Small("user | moved to | Rome"), said, schema=Facts)

    assert "moved to | Rome" in memory.load("ann")


class Profile(BaseModel):
    home: str | None = None
    sister: str | None = None


class Filler(Small):
    """One that continues each statement and field with a value, or "none", at some probability."""

    continues: bool = True

    def __init__(self, values, **fields):
        def reply(messages):
            statement, field = messages[-1].text.splitlines()[-1][1:].rsplit('" ', 1)
            return likely(*values.get((statement, field.rstrip(":")), ("none", 1.0)))

        super().__init__(reply, **fields)


BERGEN = "I live in Bergen now, with my sister."


def test_a_small_model_fills_a_profile_with_words_of_the_users_statements():
    edda, home = (SAID[0], "sister"), (OSLO, "home")
    model = Filler({edda: ("edda (me)", 0.9), home: ("Oslo (me)", 0.9)})

    memory = fold(model, "Hello!", f"{SAID[0]} {OSLO}", schema=Profile)

    assert memory.load("ann") == Profile(home="Oslo", sister="Edda")
    assert {entry.message for entry in memory.entries("ann")} == {"1"}
    assert all(call.options["plain"] for call in model.calls)


NO_VALUES = {
    "of another": ("Husum (my sister)", 0.9), "invented": ("Rome (me)", 0.9),
    "improbable": ("Husum (me)", 0.1), "nothing": ("none", 0.9), "cut off": ("Husum", 0.9),
}  # fmt: skip


@pytest.mark.parametrize("said", NO_VALUES.values(), ids=NO_VALUES)
def test_what_a_small_model_is_not_sure_that_the_user_says_of_themselves_is_no_value(said):
    assert fold(Filler({(SAID[0], "home"): said}), SAID[0], schema=Profile).entries("ann") == []


def test_words_are_the_value_of_the_field_of_which_a_small_model_is_surest():
    model = Filler({(SAID[0], "home"): ("Edda (me)", 0.6), (SAID[0], "sister"): ("Edda (me)", 0.7)})

    assert fold(model, SAID[0], schema=Profile).load("ann") == Profile(sister="Edda")


@pytest.mark.parametrize(("chance", "kept"), [(0.9, "Bergen"), (0.6, "Oslo")])
def test_a_value_replaces_another_only_if_a_small_model_is_surer_still(chance, kept):
    values = {(OSLO, "home"): ("Oslo (me)", 0.9), (BERGEN, "home"): ("Bergen (me)", chance)}

    assert fold(Filler(values), OSLO, BERGEN, schema=Profile).load("ann") == Profile(home=kept)


def set_fields(**values):
    changed = {"action": "set", "message": 1}
    changes = [{"field": name, "value": value, **changed} for name, value in values.items()]
    return json.dumps({"changes": changes})


def test_without_plain_texts_a_small_model_is_asked_for_json_with_a_warning():
    memory = fold(Small(set_fields(home="Oslo")), OSLO, schema=Profile)

    assert memory.load("ann") == Profile(home="Oslo")
    assert "continues no plain texts" in memory.history("ann")[0].warnings[0]


@pytest.mark.parametrize("said", QUOTED.values(), ids=QUOTED)
def test_what_a_user_marks_as_quoted_becomes_no_value_of_a_profile(said):
    model = Small(set_fields(home="Rome", sister="Edda"), model_name="large")
    memory = fold(model, f"{SAID[0]}\n{said}", schema=Profile)

    assert memory.load("ann") == Profile(sister="Edda")
    assert "a quotation said so: home" in memory.history("ann")[0].warnings[0]
