"""What test_cluster runs: local clusters that lose a node, or a worker, half-way."""

import doctest
import io
import json
import os
import re
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import redirect_stdout, suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import ray
from ray.cluster_utils import Cluster
from servers.openai_server import OpenAIServer
from servers.redis_server import wait_until
from snippets import snippets

from memagent_graph import ReadingConfig
from memagent_graph.memory.redis import RedisStore
from memagent_ray import read_dataset, reading

CONFIG = ReadingConfig(chunk_tokens=200, memory_tokens=100)
PLACE = ("ann", "memagent")
FILLER = "It rained over the harbour again, and nobody minded. " * 30


def task(number):
    text = f"{FILLER}\n\nVault {number} opens at {number}:40.\n\n{FILLER}"
    return {"number": number, "question": f"When does vault {number} open?", "text": text}


def lost_node(url, folder):
    """A node is killed half-way, and with it what its actor reads and what is kept there."""
    dataset = ray.data.from_items([task(number) for number in range(60)])
    options = {"store": url, "namespace": PLACE, "config": CONFIG}
    read = read_dataset(dataset.repartition(6), actors=2, batch_size=10, **options)
    log = folder / "log"

    def slowly(row):
        """Each row is logged as it is done; the half is where the node is lost."""
        with log.open("a") as file:
            file.write(f"{row['number']}\n")
        time.sleep(0.02)
        return row

    def lose():
        while not log.exists() or len(log.read_text().splitlines()) < 12:
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)

    losing = threading.Thread(target=lose)
    losing.start()
    rows = read.map(slowly).take_all()
    losing.join()
    assert Counter(row["number"] for row in rows) == Counter(range(60))
    for row in rows:
        assert row["error"] is None, row
        assert f"opens at {row['number']}:40" in row["answer"], row
    # Again, on what is left of the cluster: all is found in the store, only answers are made.
    again = read_dataset(dataset.repartition(4), batch_size=30, **options).take_all()
    assert {row["calls"] for row in again} == {1}, Counter(row["calls"] for row in again)
    with RedisStore.from_url(url) as store:
        assert {space[:2] for space in store.list_namespaces(limit=100)} == {PLACE}
    print("60 tasks, each once")


CHUNKS = 6
BATCH = 5
NOTE = re.compile(r"Note \d+ of vault \d+\.")


def reading_actors():
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # of an earlier part, whose actors are ending
            found += [one] * ("_ReadingActor" in " ".join(one.cmdline()))
    return found


def lost_worker(url, _):
    """A worker is killed as it reads; the model's server knows which calls came twice."""

    def reply(body):
        time.sleep(0.1)
        found = dict.fromkeys(NOTE.findall(body["messages"][-1]["content"]))
        return "\n".join(found) or "No new information."

    def kill_one():
        wait_until(lambda: len(server.requests) > 4 * BATCH, "a few chunks")
        worker = next(one for one in reading_actors() if one not in earlier)
        worker.kill()
        killed.append(worker.pid)

    server, killed, earlier = OpenAIServer(reply), [], reading_actors()
    rows = [
        {
            "number": number,
            "question": f"What are the notes of vault {number}?",
            "text": "\n\n".join(
                f"{FILLER[:700]} Note {place} of vault {number}." for place in range(CHUNKS)
            ),
        }
        for number in range(4 * BATCH)
    ]
    model = {"model": "openai:small", "base_url": server.base_url}
    options = {"store": url, "namespace": PLACE, "config": CONFIG, "actors": 2}
    dataset = ray.data.from_items(rows).repartition(4)
    read = read_dataset(dataset, batch_size=BATCH, **model, **options)
    killing = threading.Thread(target=kill_one, daemon=True)
    killing.start()
    answers = read.take_all()
    killing.join()
    assert killed
    assert Counter(row["number"] for row in answers) == Counter(range(4 * BATCH))
    for row in answers:
        assert row["error"] is None, row
        assert f"Note {CHUNKS - 1} of vault {row['number']}." in row["answer"], row
    calls = Counter(json.dumps(body["messages"]) for body in server.requests)
    again = sum(calls.values()) - len(calls)
    # Of each task of its batch: the chunk that was being read, one whose memory was being stored,
    # or the answer of a task that was done.
    assert again <= 2 * BATCH, again
    assert len(calls) > CHUNKS * len(rows) / 2
    server.close()
    print(f"of {len(calls)} calls, {again} were made again")


def readme(*_):
    """The code of the README, which connects to the cluster that the other parts use too."""
    ((code, _),) = snippets(Path(__file__).parents[1] / "README.md")
    exec(code, {"__name__": "example"})


def errors(_, folder):
    file = folder / "lease.txt"
    file.write_text("The lease was signed by Mr. Fox.\n")
    rows = [
        {"question": "Who signed the lease?", "document": {"path": str(file)}},
        {"question": "Who signed the lease?", "document": {"path": str(folder / "nothing.txt")}},
        {"question": "", "document": {"path": str(file)}},
        {"question": "Who signed?", "text": ["It rained.", "Mr. Owl signed the lease."]},
    ]
    read_dataset(ray.data.from_items(rows)).write_parquet(str(folder / "answers"))
    rows = [{"question": "Who signed the lease?", "document": [{"path": str(file)}]}]
    rows += [{"question": "Who signed the lease?", "text": str(file)}]
    files, text = read_dataset(ray.data.from_items(rows)).take_all()
    assert "Mr. Fox" in files["memory"], files
    assert "Fox" not in text["memory"], text  # a `str` is text, also where a file has that name
    found = pq.read_table(folder / "answers").to_pylist()
    (several,) = [row["memory"] for row in found if row["text"]]
    assert "Mr. Owl" in several, several
    by_error = {str(row["error"]).partition(":")[0]: row for row in found if row["document"]}
    assert set(by_error) == {"None", "SourceNotFoundError", "QuestionError"}, by_error
    assert by_error["None"]["answer"] == "The lease was signed by Mr. Fox."
    print("answers and errors")


def examples(*_):
    print(doctest.testmod(reading))


def main(url, folder):
    """What each part prints, or how it failed, on a cluster of two nodes, the last part on one."""
    told = {}
    for part in (readme, errors, examples, lost_worker, lost_node):
        with redirect_stdout(io.StringIO()) as out:
            try:
                part(url, folder)
            except Exception:  # noqa: BLE001 - it is printed
                traceback.print_exc(file=out)
        told[part.__name__] = out.getvalue()
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    quick = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 200,
        "health_check_failure_threshold": 10,
    }
    head = {"num_cpus": 2, "_system_config": quick, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1)
    os.environ["RAY_ADDRESS"] = cluster.address
    main(sys.argv[1], Path(sys.argv[2]))
