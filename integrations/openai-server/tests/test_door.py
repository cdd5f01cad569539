"""Who is let in, what of whom they see, and what is written down."""

import json
import logging

import httpx
import openai
import pytest
from langgraph.store.memory import InMemoryStore
from servers.redis_server import wait_until

from memagent_graph.errors import ConfigurationError
from memagent_openai_server import Limits
from memagent_openai_server.access import JsonLines, keys_from_file, load_keys, log

ANN, BEN = "the-key-of-ann-0123456789", "the-key-of-ben-0123456789"
KEYS = {ANN: "ann", BEN: "ben"}
HI = {"model": "extractive", "messages": [{"role": "user", "content": "Who is there?"}]}


@pytest.fixture
def locked(serve):
    return serve(keys=KEYS)


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/responses/resp_1", "/nowhere"])
def test_nobody_comes_in_without_a_key(locked, path):
    for key in (None, "wrong", ANN[:-1], f"{ANN}x", ANN.upper(), "ann", "é" * 20):
        headers = {} if key is None else {"authorization": f"Bearer {key}".encode()}

        found = httpx.get(f"{locked.url}{path}", headers=headers)

        assert found.status_code == 401, key
        assert found.json()["error"]["code"] == "invalid_api_key"


def long_chat(needle: str) -> list[dict]:
    return [{"role": "user", "content": f"{needle}\n\nWhat is the secret of the vault?"}]


ANN_S = "The secret of the vault is a blue heron."
ABOUT = [{"role": "user", "content": "What is the secret of the vault?"}]


@pytest.fixture
def told(locked):
    """Ann's memory and session, of which Ben knows all names."""
    ann = locked.client(ANN, default_headers={"x-memagent-session": "monday"})
    asked = {"model": "extractive", "messages": long_chat(ANN_S)}
    chat = ann.chat.completions.create(**asked)
    locked.client(ANN).chat.completions.create(**asked, user="joe")
    return {"memory": chat.memagent["memory"]}


def test_a_tenant_finds_its_own_memories(locked, told):
    ann = locked.client(ANN)
    by_id = {"extra_body": {"memagent": {"memory": told["memory"]}}}
    by_session = {"extra_headers": {"x-memagent-session": "monday"}}

    for how in (by_id, by_session, {"user": "joe"}):
        found = ann.chat.completions.create(model="extractive", messages=ABOUT, **how)
        assert found.choices[0].message.content == ANN_S


def test_a_name_of_another_tenant_leads_to_nothing(locked, told):
    create = locked.client(BEN).chat.completions.create

    for how in ({"extra_headers": {"x-memagent-session": "monday"}}, {"user": "joe"}):
        found = create(model="extractive", messages=ABOUT, **how)
        assert "heron" not in found.to_json()


REFERENCES = [
    *("{memory}", "session monday", "user joe", "../ann/{memory}", "tenant-ann.memagent"),
    *("tenant-ann.memagent.versions.{memory}", "*", "%", "{memory}' OR '1'='1", "\u0000"),
]


def test_an_id_or_a_path_of_another_tenant_is_not_there(locked, told):
    for reference in REFERENCES:
        body = {**HI, "messages": ABOUT, "memagent": {"memory": reference.format(**told)}}

        found = locked.post(json=body, headers={"authorization": f"Bearer {BEN}"})

        assert found.status_code == 404, reference
        assert "heron" not in found.text


def test_the_same_text_read_by_two_tenants_makes_two_chains(locked, told):
    locked.client(BEN).chat.completions.create(model="extractive", messages=long_chat(ANN_S))

    spaces = {item.namespace for item in locked.service.store.search((), limit=1000)}
    versions = {space for space in spaces if space[-1] == "versions"}
    assert versions == {(f"tenant-{name}", "memagent", "versions") for name in ("ann", "ben")}


def test_servers_of_one_store_share_no_memory_if_their_namespaces_differ(serve):
    store = InMemoryStore()
    one, other = (serve(store=store, namespace=(name,)) for name in ("one", "other"))
    told = one.ask(long_chat(ANN_S), model="extractive")
    reference = {"memagent": {"memory": told.memagent["memory"]}}

    found = one.ask(ABOUT, model="extractive", extra_body=reference)
    with pytest.raises(openai.NotFoundError):
        other.ask(ABOUT, model="extractive", extra_body=reference)

    assert found.choices[0].message.content == ANN_S
    assert {item.namespace[0] for item in store.search((), limit=100)} == {"one"}


def test_one_too_many_requests_is_a_429_that_says_when(serve):
    server = serve(keys=KEYS, limits=Limits(requests_per_minute=3))

    codes = [server.post(json=HI, headers={"authorization": f"Bearer {ANN}"}) for _ in range(4)]
    other = server.post(json=HI, headers={"authorization": f"Bearer {BEN}"})

    assert [code.status_code for code in codes] == [200, 200, 200, 429]
    assert 1 <= int(codes[-1].headers["retry-after"]) <= 20
    assert other.status_code == 200


def test_pages_of_other_sites_may_not_call_it(serve):
    page = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    closed, opened = serve(), serve(origins=["https://good.example"])

    refused = httpx.options(f"{closed.url}/v1/chat/completions", headers=page)
    other = httpx.options(f"{opened.url}/v1/chat/completions", headers=page)
    allowed = httpx.options(
        f"{opened.url}/v1/chat/completions", headers={**page, "origin": "https://good.example"}
    )

    name = "access-control-allow-origin"
    assert name not in refused.headers
    assert name not in other.headers
    assert allowed.headers[name] == "https://good.example"


@pytest.mark.parametrize("headers", [{"content-type": "text/plain"}, {}], ids=["form", "blob"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_what_a_page_can_send_without_asking_is_refused(builtin, path, headers):
    found = builtin.post(path, content=json.dumps(HI).encode(), headers=headers)

    assert found.status_code == 415


@pytest.mark.parametrize("origin", ["https://evil.example", "null", ""])
def test_a_page_of_another_origin_reaches_nothing(serve, origin):
    server = serve(origins=["https://good.example"])
    headers = {"origin": origin, "host": "evil.example"}

    found = [
        server.post(json=HI, headers=headers),
        server.post("/v1/responses", json={"model": "extractive", "input": "?"}, headers=headers),
        httpx.get(f"{server.url}/v1/models", headers=headers),
        httpx.delete(f"{server.url}/v1/responses/resp_1", headers=headers),
    ]

    assert {answer.status_code for answer in found} == {403}
    assert found[0].json()["error"]["code"] == "origin"
    assert server.post(json=HI, headers={"origin": "https://good.example"}).status_code == 200


def test_a_host_that_it_does_not_go_by_is_refused(serve):
    server = serve(hosts=["127.0.0.1"])

    assert server.post(json=HI).status_code == 200
    found = server.post(json=HI, headers={"host": f"rebound.example:{server.port}"})
    assert found.status_code == 421


def _requests(caplog):
    lines = [JsonLines().format(each) for each in [*caplog.records] if each.name == log.name]
    return [json.loads(line) for line in lines if '"request"' in line]


def test_the_log_has_neither_text_nor_keys(serve, upstream, asked, small, caplog):
    server = serve("openai:small", base_url=upstream.base_url, config=small, keys=KEYS)
    upstream.script = ["ok", {"status": 400, "error": {"message": "secret heron"}}]
    with caplog.at_level(logging.DEBUG):
        for messages in (ABOUT, asked()):
            body = {"model": "small", "messages": messages, "user": "joe-the-user"}
            server.post(json=body, headers={"authorization": f"Bearer {ANN}"})
        headers = {"authorization": f"Bearer {ANN}", "content-type": "application/json"}
        server.post(content=b"{secret", headers=headers)
        # A request is logged when its reply has been sent.
        wait_until(lambda: len(_requests(caplog)) == 3, "three lines")

    own = [JsonLines().format(record) for record in caplog.records if record.name == log.name]
    lines = _requests(caplog)
    told = [(line["tenant"], line["status"], line.get("how")) for line in lines]
    assert told == [("ann", 200, "passed"), ("ann", 502, "read"), ("ann", 400, None)]
    for secret in (ANN, "vault", "Item", "joe", "heron", "secret"):
        assert secret not in "\n".join(own)


def test_an_unexpected_error_is_a_500_and_its_place_stands_in_the_log(builtin, monkeypatch, caplog):
    def fail(*_, **__):
        raise ZeroDivisionError("secret heron")

    monkeypatch.setattr(builtin.service, "memories", fail)
    with caplog.at_level(logging.INFO, logger=log.name):
        found = builtin.post(json=HI)

    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert found.status_code == 500
    (line,) = [line for line in lines if line["event"] == "error"]
    assert line["error"] == "ZeroDivisionError"
    assert any("reading.py" in place for place in line["at"])
    assert "heron" not in found.text + json.dumps(lines)


def test_metrics_count_what_was_done_and_name_no_tenant(serve, upstream, asked, small):
    server = serve("openai:small", base_url=upstream.base_url, config=small)
    server.post(json={"model": "small", "messages": ABOUT, "user": "joe"})
    server.post(json={"model": "small", "messages": asked(), "user": "joe"})

    requests = "memagent_requests_total"
    assert server.metric(requests, how="passed", status="200") == 1
    assert server.metric(requests, how="read", status="200") == 1
    assert server.metric("memagent_chunks_read_total") > 10
    assert server.metric("memagent_readings_under_way") == 0
    assert "joe" not in httpx.get(f"{server.url}/metrics").text


def test_keys_are_read_from_a_file_and_from_a_variable(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# who\nann {ANN}\n\nben   {BEN}\n")

    assert keys_from_file(file) == KEYS
    assert load_keys(f"ann {ANN},ben {BEN}", where="a variable") == KEYS


@pytest.mark.parametrize("line", ["ann short", "ann", f"a.b {ANN}", f"../x {ANN}", "ann é" * 9])
def test_a_line_that_is_no_key_is_refused_without_being_shown(line):
    with pytest.raises(ConfigurationError) as caught:
        load_keys(line, where="keys")

    assert line.split()[-1] not in str(caught.value)
