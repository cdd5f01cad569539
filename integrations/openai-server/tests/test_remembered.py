"""With `--remember`, what a user says in one chat is known in the next."""

from base64 import b64encode

import httpx
import openai
import pytest
from langgraph.store.memory import InMemoryStore
from servers.openai_server import OpenAIServer

from memagent_graph import ConversationMemory
from memagent_graph.conversation.reader import STANDING_QUESTION
from memagent_graph.conversation.users import Users
from memagent_graph.memory.items import NAMESPACE
from memagent_graph.memory.redis import RedisStore

ANN, BEN = "the-key-of-ann-0123456789", "the-key-of-ben-0123456789"
KEYS = {ANN: "ann", BEN: "ben"}
QUOKKAS = "I breed quokkas in Hobart."
ASKED = "What do I breed?"
NOTES = "2026-11-24 The user breeds quokkas."


def folds(body):
    return STANDING_QUESTION in body["messages"][-1]["content"]


class Upstream(OpenAIServer):
    """A model that notes what it is told of quokkas, and says whether it knows of them."""

    def __init__(self):
        super().__init__(self._say)
        self.models = [{"id": "small", "max_model_len": 2048, "owned_by": "vllm"}]

    def _say(self, body):
        prompt = str(body["messages"])
        if folds(body):
            return NOTES if "user: I breed" in prompt else "unchanged"
        knows = NOTES in prompt or f"user: {QUOKKAS}" in prompt  # a passage says who speaks
        return "You breed quokkas." if knows else "Tell me more."

    @property
    def folded(self):
        """What was to be noted, in one text."""
        return "\n".join(str(body["messages"]) for body in self.requests if folds(body))

    @property
    def chats(self):
        return [body for body in self.requests if not folds(body)]


@pytest.fixture
def upstream():
    server = Upstream()
    yield server
    server.close()


@pytest.fixture
def redis(redis):
    with RedisStore.from_url(redis.url) as store:
        yield store


@pytest.fixture
def start(upstream, serve, small):
    def start(**options):
        options = {"config": small, "store": InMemoryStore(), "remember": True, **options}
        return serve("openai:small", base_url=upstream.base_url, **options)

    return start


def chat(server, *said, key="none", stream=False, **options):
    """The last of some turns; what the assistant said stands between them."""
    roles = ["user", "assistant"] * len(said)
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    asked = {"model": "small", "messages": messages, "stream": stream, **options}
    found = server.client(key).chat.completions.create(**asked)
    if not stream:
        return found.choices[0].message.content
    return "".join(part.choices[0].delta.content or "" for part in found if part.choices)


def test_a_new_chat_after_a_restart_knows_what_the_last_one_said(redis, start, upstream, stream):
    before = start(store=redis)
    first = chat(before, QUOKKAS, user="joe", stream=stream)
    before.close()
    after = start(store=redis)

    known = chat(after, ASKED, user="joe", stream=stream)
    unknown = chat(after, ASKED, user="zoe", stream=stream)
    nobody = chat(after, ASKED, stream=stream)

    assert first == unknown == nobody == "Tell me more."
    assert known == "You breed quokkas."
    assert QUOKKAS in upstream.folded
    assert "Tell me more." in upstream.folded
    told, *rest = upstream.chats[-3]["messages"]
    assert told["role"] == "system"
    assert QUOKKAS in told["content"]  # word for word, as it bears on what is asked
    assert rest == [{"role": "user", "content": ASKED}]


def test_two_keys_with_the_same_user_share_nothing(redis, start, upstream):
    server = start(store=redis, keys=KEYS)

    chat(server, QUOKKAS, key=ANN, user="joe")

    assert chat(server, ASKED, key=BEN, user="joe") == "Tell me more."
    assert chat(server, ASKED, key=ANN, user="joe") == "You breed quokkas."
    with pytest.raises(openai.BadRequestError, match="cannot be used in a conversation"):
        chat(server, ASKED, key=ANN, user="anonymous thread 1")

    def list_memories(name):
        found = Users(redis, (f"tenant-{name}", *NAMESPACE)).list()
        return {user: version.text for user, version in found if version is not None}

    server.close()  # what waits is folded
    assert list_memories("ann") == {"joe": NOTES}
    assert not any("quokkas" in text for text in list_memories("ben").values())


def test_without_a_user_or_the_switch_nothing_is_remembered_and_nothing_changed(start, upstream):
    store = InMemoryStore()
    for options, fields in (({}, {}), ({"remember": False}, {"user": "joe"})):
        server = start(store=store, **options)
        body = {"model": "small", "messages": [{"role": "user", "content": QUOKKAS}], **fields}
        server.post(json=body)
        server.close()
        assert upstream.requests.pop() == body

    assert upstream.requests == []
    assert store.search(()) == []


def test_what_is_known_joins_the_prompt_of_the_application(start, upstream):
    server = start()
    chat(server, QUOKKAS, user="joe")

    for content in ("Be brief.", [{"type": "text", "text": "Be brief."}]):
        prompt = {"role": "system", "content": content}
        messages = [prompt, {"role": "user", "content": ASKED}]
        server.post(json={"model": "small", "messages": messages, "user": "joe"})

        told, asked = upstream.chats[-1]["messages"]
        assert asked == messages[1]
        parts = told["content"] if isinstance(content, list) else told["content"].split("\n\n", 1)
        assert str(parts[0]) == str(content[0] if isinstance(content, list) else content)
        assert QUOKKAS in str(parts[1])
    assert "Be brief." not in upstream.folded


def test_each_turn_is_remembered_once_however_often_it_is_sent(start, upstream):
    server = start()
    said = ["I breed quokkas."]
    for turn in ("I breed emus.", "I breed hens."):
        said += [chat(server, *said, user="joe"), turn]
    chat(server, *said, user="joe")
    chat(server, *said, user="joe")  # again, for another answer
    server.close()

    for text in said[::2]:
        assert upstream.folded.count(f"user: {text}") == 1


def test_what_is_said_again_in_another_chat_is_another_message(start, upstream):
    server = start()
    chat(server, "Hello.", "Hi.", "I breed emus.", user="joe")
    chat(server, "Good day.", "Hi.", "I breed emus.", user="joe")
    server.close()

    assert upstream.folded.count("user: I breed emus.") == 2


def test_a_reply_that_calls_tools_is_not_the_end_of_a_turn(start, upstream):
    server = start()
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call]}
    upstream.script = [{"message": calls, "finish_reason": "tool_calls"}]
    asked = {"role": "user", "content": QUOKKAS}
    fields = {"model": "small", "user": "joe"}

    server.post(json={**fields, "messages": [asked]})
    result = {"role": "tool", "tool_call_id": "c", "content": "SECRET"}
    server.post(json={**fields, "messages": [asked, calls, result]})
    server.close()

    assert upstream.folded.count(f"user: {QUOKKAS}") == 1
    assert "assistant: Tell me more." in upstream.folded
    assert "SECRET" not in upstream.folded


def test_what_a_file_says_is_not_remembered_as_said_by_the_user(start, upstream):
    server, data = start(), b64encode(b"The vault opens at 6:40.").decode()
    file = {"filename": "vault.txt", "file_data": data}
    parts = [{"type": "file", "file": file}, {"type": "text", "text": ASKED}]
    message = {"role": "user", "content": parts}

    server.post(json={"model": "small", "user": "joe", "messages": [message]})
    server.close()

    assert "6:40" in str(upstream.chats)
    assert ASKED in upstream.folded  # after a mark of the file
    assert "6:40" not in upstream.folded


def test_a_failed_answer_is_not_remembered(start, upstream):
    server = start()
    upstream.script = [500]

    failed = server.post(
        json={"model": "small", "user": "joe", "messages": [{"role": "user", "content": QUOKKAS}]}
    )
    server.close()

    assert failed.is_error
    assert upstream.folded == ""


@pytest.mark.slow
def test_a_long_text_is_answered_with_what_is_known_and_remembered(start, upstream, text, stream):
    server = start()
    chat(server, QUOKKAS, user="joe")

    said = chat(server, f"{text()}\n\n{ASKED}", user="joe", stream=stream)
    server.close()

    assert said == "You breed quokkas."
    assert f"user: {ASKED}" in upstream.folded
    assert "stands on shelf" not in upstream.folded


def test_the_responses_api_remembers_unless_nothing_is_to_be_stored(start, upstream):
    server = start()
    responses = server.client().responses
    responses.create(model="small", input="I breed emus.", user="joe", store=False)
    with responses.stream(model="small", input=QUOKKAS, user="joe") as stream:
        stream.until_done()

    known = responses.create(model="small", input=ASKED, user="joe")
    server.close()

    assert known.output_text == "You breed quokkas."
    assert "emus" not in upstream.folded


def test_a_client_that_leaves_with_the_last_word_is_remembered(start, upstream):
    server = start()
    body = {"model": "small", "user": "joe", "stream": True}
    body["messages"] = [{"role": "user", "content": QUOKKAS}]
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if '"finish_reason": "stop"' in line:
                break
    server.close()

    assert QUOKKAS in upstream.folded


def test_a_user_who_is_forgotten_is_unknown_also_of_what_waited(start, upstream):
    server = start()
    chat(server, QUOKKAS, user="joe")
    chat(server, "Hello.", user="joe")

    ConversationMemory(store=server.service.store).forget("joe", by="support")
    left = [*server.service.store.search((), limit=1000)]
    assert chat(server, ASKED, user="joe") == "Tell me more."
    server.close()  # what waits is folded
    left += server.service.store.search((), limit=1000)

    assert not [item for item in left if "quokkas" in str(item) or "Hello" in str(item)]


def test_any_name_is_a_user_of_its_own(redis, serve):
    server = serve(remember=True, store=redis)
    ask = server.client().chat.completions.create
    names = ["*", "a.b", "a/b/", "{x}", "\x00", "Ä\n", "user joe", "joe", "joe ", "x" * 512]

    def say(text, user):
        said = [{"role": "user", "content": text}]
        return ask(model="extractive", messages=said, user=user).choices[0].message.content

    for number, name in enumerate(names):
        say(f"My locker has the code 10{number}7.", name)

    for number, name in enumerate(names):
        said = say("Which code has my locker?", name)
        assert said.endswith(f"My locker has the code 10{number}7.")
