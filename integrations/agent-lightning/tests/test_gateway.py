"""Agent Lightning's own gateway and controller, as processes; its trainer needs GPUs."""

import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest
from servers.http_process import is_healthy
from servers.openai_server import OpenAIServer
from servers.redis_server import free_port, wait_until

pytest.importorskip("agentlightning.schemas")
pytestmark = pytest.mark.slow

AGENT = "memagent_agent_lightning:MemAgentRollout"
FILLER = "It rained over the harbour again, and nobody minded. " * 1200
FACT = "The vault opens at 6:40."


@contextmanager
def process(name, *settings, folder):
    command = [sys.executable, "-W", "ignore", "-m", f"agentlightning.{name}", *settings]
    with (folder / name).open("w") as log:
        running = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            yield
        finally:
            running.terminate()
            running.wait(240)


@pytest.fixture
def policy():
    def reply(body):
        return "\\boxed{6:40}" if "6:40" in body["messages"][-1]["content"] else "Nothing yet."

    server = OpenAIServer(reply)
    yield server
    server.close()


@pytest.fixture
def api(policy, tmp_path):
    """The gateway, with a controller that starts readings as processes."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings = ["host=127.0.0.1", f"port={port}", "key=secret", "default_proxy.model_name=small"]
    watching = ["runner_type=local", f"agl_server.url={url}", "agl_server.key=secret"]
    with (
        process("server", *settings, folder=tmp_path),
        httpx.Client(base_url=url, headers={"Authorization": "Bearer secret"}) as client,
    ):
        wait_until(lambda: is_healthy(f"{url}/healthz", only=False), "the gateway", 240)
        model = {"model": "small", "endpoint": policy.base_url}
        client.post("/api/models", json=[model]).raise_for_status()
        watching.append("local_runner.poll_interval=0.2")
        with process("controller", *watching, folder=tmp_path):
            yield client


def test_a_group_of_rollouts_is_read_recorded_and_rewarded(api, policy, tmp_path):
    (tmp_path / "vault.txt").write_text(f"{FILLER}\n\n{FACT}\n\n{FILLER}")
    local = {"agent_class": AGENT, "env_map": {"MEMAGENT_TASK": "input"}}

    def asked(truth, *, is_train=True):
        task = {"question": "When does the vault open?", "answers": [truth]}
        task["path"] = str(tmp_path / "vault.txt")
        return {"input": task, "is_train": is_train, "config": {"local": local}}

    wanted = [asked("6:40"), asked("7:15"), asked("6:40", is_train=False)]
    created = api.post("/api/rollouts", json=wanted).raise_for_status().json()
    names = [one["rollout_id"] for one in created]

    def states():
        found = [api.get(f"/api/rollouts/{name}").json() for name in names]
        return [one["rollout"]["status"]["state"] for one in found]

    wait_until(lambda: set(states()) <= {"succeeded", "failed"}, "the rollouts", 600)

    logs = (tmp_path / "controller").read_text()
    assert states() == ["succeeded"] * 3, logs
    events = [api.get(f"/api/rollouts/{name}/events").json() for name in names]
    rewards = [[e["data"]["value"] for e in of if e["event_type"] == "reward"] for of in events]
    assert rewards == [[1.0], [0.0], [1.0]]
    calls = [[e["data"] for e in of if e["event_type"] == "model_request"] for of in events]
    assert {len(of) for of in calls} == {len(policy.requests) // 3}
    assert len(calls[0]) > 4
    trained = calls[0] + calls[1]
    assert {call["request"]["temperature"] for call in trained} == {1.0}
    assert all(call["request"]["return_token_ids"] for call in trained)
    assert {call["request"]["max_tokens"] for call in trained} == {1024}
