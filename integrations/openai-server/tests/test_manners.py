"""What every HTTP client may expect of any server: ids, HEAD, slashes, and patience with keys."""

import httpx
import pytest

from memagent_http import access

ANN, BEN = "the-key-of-ann-0123456789", "the-key-of-ben-0123456789"
KEYS = {ANN: "ann", BEN: "ben"}
CHAT = "/v1/chat/completions"
GETS = ("/health", "/metrics", "/v1/models", "/v1/models/extractive", "/v1/models/x", "/nowhere")
HI = {"model": "extractive", "messages": [{"role": "user", "content": "Who is there?"}]}
IDS = {"x-request-id": "mine"}
JSON = "application/json"


@pytest.mark.parametrize("path", GETS)
def test_a_response_has_one_request_id(shared, path):
    found = [httpx.get(f"{shared.url}{path}", headers=IDS), httpx.post(f"{shared.url}{path}")]

    ids = [response.headers.get_list("x-request-id") for response in found]
    assert [len(each) for each in ids] == [1, 1]
    assert all(each[0].startswith("req_") for each in ids)
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (CHAT, "POST"),
        ("/v1/models", "GET, HEAD"),
        ("/v1/responses", "POST"),
        ("/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("/v1/embeddings", "POST"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "OPTIONS"])
def test_a_refused_method_is_answered_with_all_that_there_are(shared, path, allowed, method):
    answer = httpx.request(method, f"{shared.url}{path}", headers={"content-type": JSON})

    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("slashes", ["/", "//", "///"])
def test_a_slash_at_the_end_makes_no_difference(shared, slashes):
    for path in GETS:
        found, same = (httpx.get(f"{shared.url}{path}{end}") for end in (slashes, ""))
        assert found.status_code == same.status_code
        assert "location" not in found.headers
    assert shared.post(f"{CHAT}{slashes}", json=HI).status_code == 200


@pytest.mark.parametrize("path", ["//evil.example", "//evil.example/", "/v1/models//evil.example/"])
def test_nothing_is_redirected_to_where_a_client_says(shared, path):
    with shared.connect() as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: evil.example\r\n\r\n".encode())
        answer = connection.recv(65536)

    assert answer.startswith(b"HTTP/1.1 404")
    assert b"location" not in answer.lower()


def get(server, key: str | None, path: str = "/v1/models", *, address: str = "10.0.0.1"):
    """Ask with a key, through a proxy that says from which address."""
    headers = {"x-forwarded-for": address}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    return httpx.get(f"{server.url}{path}", headers=headers, verify=False)


@pytest.fixture
def locked(serve, monkeypatch):
    """A server whose clock stands still, however busy this machine is."""
    now = access.monotonic()
    monkeypatch.setattr(access, "monotonic", lambda: now)
    return serve(keys=KEYS)


def guess(server, address: str = "10.0.0.1", times: int = 25) -> list[int]:
    return [get(server, f"a-guess-{one}", address=address).status_code for one in range(times)]


def test_keys_cannot_be_guessed_at_will(locked):
    codes = guess(locked)
    right = get(locked, ANN)

    assert codes[:20] == [401] * 20
    assert codes[-1] == 429
    assert right.status_code == 429  # else guessing would go on
    assert 1 <= int(right.headers["retry-after"]) <= 60
    assert "wrong keys" in right.json()["error"]["message"]


def test_who_guesses_locks_nobody_out(locked):
    assert get(locked, ANN).status_code == 200
    assert guess(locked)[-1] == 429

    assert get(locked, ANN).status_code == 200  # a key in use, from the same address
    assert get(locked, BEN, address="10.0.0.2").status_code == 200
    assert get(locked, None, "/health").status_code == 200


def test_a_missing_key_is_no_guess(locked):
    assert {get(locked, None).status_code for _ in range(25)} == {401}
    assert get(locked, ANN).status_code == 200


def test_the_addresses_of_one_ipv6_network_are_one_and_those_of_mapped_ipv4_are_not(locked):
    assert guess(locked, "2001:db8::1")[-1] == 429
    assert guess(locked, "2001:db8::ffff", 1) == [429]
    assert guess(locked, "2001:db8:0:1::1", 1) == [401]
    assert guess(locked, "::ffff:10.0.0.7")[-1] == 429
    assert guess(locked, "10.0.0.7", 1) == [429]
    assert guess(locked, "::ffff:10.0.0.8", 1) == [401]
