import json

import httpx
import pytest
from mcp_serving import ACCEPT, COMMAND, INITIALIZE, PING, PYTHON, environment, http_server

pytestmark = pytest.mark.slow
TOKEN = "correct horse"
FOREIGN = [
    *("https://evil.example", "null", "", "http://localhost:3000", "http://localhost"),
    *("http://localhost:{port}.evil.example", "http://evil.example:{port}"),
    *("https://localhost:{port}", "http://x@localhost:{port}"),
]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """URLs of a server without a token, and of one with it; and the log of that one."""
    folder = tmp_path_factory.mktemp("servers")
    (folder / "books").mkdir()
    options = ["--root", folder / "books", "--store", "none", "--model", "extractive"]
    log = folder / "log"
    with (
        http_server(folder / "log of the other", *options) as (free, _),
        http_server(log, *options, MEMAGENT_MCP_TOKEN=TOKEN) as (locked, _),
    ):
        yield free, locked, log


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_web_page_cannot_reach_a_server_on_this_machine(servers, token):
    headers = {**ACCEPT, "authorization": f"Bearer {token}"} if token else ACCEPT
    url = servers[1] if token else servers[0]
    port = httpx.URL(url).port

    for foreign in FOREIGN:
        origin = {"origin": foreign.replace("{port}", str(port))}
        for method in ("POST", "GET", "DELETE", "OPTIONS"):
            found = httpx.request(method, url, json=PING, headers={**headers, **origin})
            assert found.status_code == 403
            assert not any(name.startswith("access-control") for name in found.headers)
    for kind in (None, "text/plain", "application/jsonx", "multipart/form-data"):
        sent = {**headers, "content-type": kind} if kind else headers
        found = httpx.post(url, content=json.dumps(INITIALIZE), headers=sent)
        assert found.status_code == 415
    form = httpx.post(url, data={"x": "y"}, headers=headers)
    rebound = httpx.post(url, json=INITIALIZE, headers={**headers, "host": "evil.example"})
    own = httpx.post(url, json=INITIALIZE, headers=headers)

    assert form.status_code == 415
    assert rebound.status_code == (200 if token else 421)
    assert own.status_code == 200


def test_pages_of_the_servers_own_address_may_call_it(servers):
    url, *_ = servers
    port = httpx.URL(url).port
    own = [f"http://{name}:{port}" for name in ("localhost", "127.0.0.1", "[::1]")]

    served = [httpx.post(url, json=INITIALIZE, headers={**ACCEPT, "origin": o}) for o in own]
    rebound = {**ACCEPT, "origin": own[0], "host": "evil.example"}
    refused = httpx.post(url, json=INITIALIZE, headers=rebound)
    methods = httpx.put(url, json=PING, headers=ACCEPT)

    assert [found.status_code for found in served] == [200, 200, 200]
    assert refused.status_code == 421
    assert (methods.status_code, methods.headers["allow"]) == (405, "GET, POST, DELETE")


def test_a_page_of_an_allowed_site_is_asked_first_and_served(options, tmp_path):
    site = "http://localhost:6274"
    asks = {
        "origin": site,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type, mcp-protocol-version, authorization",
    }
    options += ["--cors-origin", site]

    with http_server(tmp_path / "log", *options, MEMAGENT_MCP_TOKEN=TOKEN) as (url, _):
        asked = httpx.options(url, headers=asks)
        headers = {**ACCEPT, "origin": site, "authorization": f"Bearer {TOKEN}"}
        served = httpx.post(url, json=INITIALIZE, headers=headers)
        without = httpx.post(url, json=INITIALIZE, headers={**ACCEPT, "origin": site})
        other = httpx.options(url, headers={**asks, "origin": "null"})

    assert asked.status_code == 200
    assert "authorization" in asked.headers["access-control-allow-headers"]
    assert served.status_code == 200
    assert served.headers["access-control-allow-origin"] == site
    assert "mcp-session-id" in served.headers["access-control-expose-headers"]
    assert (without.status_code, other.status_code) == (401, 403)


def test_a_body_beyond_the_limit_is_refused(servers):
    url, *_ = servers
    headers = {**ACCEPT, "content-type": "application/json"}

    declared = httpx.post(url, content=b" " * 5_000_000, headers=headers)
    streamed = httpx.post(url, content=(b" " * 100_000 for _ in range(50)), headers=headers)

    assert (declared.status_code, streamed.status_code) == (413, 413)


def test_who_does_not_send_the_token_is_refused(servers):
    wrong = ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}2", f"bearer{TOKEN}"]
    _, url, log = servers

    def send(key):
        return httpx.post(url, json=INITIALIZE, headers={**ACCEPT, "authorization": key})

    refused = [send(key) for key in wrong]
    served = [send(f"{scheme} {TOKEN}") for scheme in ("Bearer", "BEARER", "bEaReR  ")]

    assert {response.status_code for response in refused} == {401}
    assert {response.status_code for response in served} == {200}  # in any case
    assert not any(TOKEN in response.text for response in refused)
    assert TOKEN not in log.read_text()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--port", "1", "--host", "0.0.0.0"], "MEMAGENT_MCP_TOKEN"),
        (["--root", "/nowhere/none"], "memagent: error: The root"),
    ],
    ids=["another address", "no such root"],
)
def test_without_a_token_it_listens_on_this_machine_only(options, more, reason):
    done = PYTHON.run([*COMMAND, *options, *more], env=environment())

    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
