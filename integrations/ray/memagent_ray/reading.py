"""A Ray dataset of tasks becomes one of answers, by actors that hold an engine each."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy

from memagent_graph import ReadingConfig, create_memagent, read_many
from memagent_graph.errors import ConfigurationError
from memagent_graph.memory.records import NAMESPACE, check_namespace
from memagent_graph.memory.stores import NO_STORE, open_store
from memagent_graph.readers.resolve import resolve_reader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ray.data import Dataset

    from memagent_graph.batch import Result

_ANSWER = pa.schema(
    [
        ("answer", pa.string()),
        ("memory", pa.string()),
        ("coverage", pa.float64()),
        ("calls", pa.int64()),
        ("input_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("version", pa.string()),
        ("error", pa.string()),
    ]
)


def read_dataset(
    dataset: Dataset,
    *,
    model: str | None = None,
    base_url: str | None = None,
    store: str | None = None,
    namespace: Sequence[str] = NAMESPACE,
    config: ReadingConfig | None = None,
    actors: int | tuple[int, int] = 1,
    batch_size: int = 64,
    num_cpus: float = 1,
    num_gpus: float = 0,
) -> Dataset:
    """Read the document of each row for its question.

    Args:
        dataset: rows with a `question` and a `document`: a `str` is text, `{"path": ...}` a file
            that every node can open, a list is several. A column has values of one kind: where
            some rows have texts and others files, texts may be in a column `text` of their own.
            Other columns are kept.
        model: as for `create_memagent`, but a string: each actor makes its own.
        base_url: of an OpenAI-compatible server.
        store: where memories are shared: a Redis URL, or None for nowhere.
        namespace: labels under which they are kept there.
        config: budgets.
        actors: how many, or the least and the most.
        batch_size: rows that an actor reads at once.
        num_cpus: that an actor needs.
        num_gpus: likewise; a fraction shares a GPU.

    Returns:
        A dataset that is read when it is asked for. Each row has, besides its own columns,
        `answer`, `memory`, `coverage`, `calls`, `input_tokens`, `output_tokens`, `version`, and
        `error`, which is null if all went well.
    """
    least, most = (actors, actors) if isinstance(actors, int) else actors
    return dataset.map_batches(
        _ReadingActor,
        fn_constructor_args=(
            model,
            base_url,
            store,
            check_namespace(namespace),
            config or ReadingConfig(),
        ),
        batch_size=batch_size,
        batch_format="pyarrow",
        zero_copy_batch=True,
        compute=ActorPoolStrategy(min_size=least, max_size=most),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        # By Ray's own defaults a lost actor is started again, and its batch with it, as often as
        # it takes: stored memories make that cheap.
    )


def read_tasks(
    rows: list[dict[str, Any]], address: str, out: Path, *, store: str | None, **options: Any
) -> None:
    """What `memagent batch --ray` does: rows to a folder of Parquet, by all the cluster has.

    Args:
        rows: tasks.
        address: of the cluster, "local" for one of this machine.
        out: the folder.
        store: a Redis URL or None; other stores cannot be shared between machines.
        options: for `read_dataset`.

    Raises:
        ConfigurationError: The store is a file.
    """
    if store is not None and store != NO_STORE and "://" not in store:
        raise ConfigurationError("On a cluster memories are shared through Redis, not a file.")
    ray.init(address=address, logging_level=logging.WARNING)
    tasks = ray.data.from_items(rows)
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call] # Ray's, not ours
    most = max(1, int(resources.get("CPU", 1)))
    read_dataset(tasks, store=store, actors=(1, most), **options).write_parquet(str(out))


class _ReadingActor:
    """Holds a reader, its engine and its connection to the store for as long as it lives."""

    def __init__(
        self,
        model: str | None,
        base_url: str | None,
        store: str | None,
        namespace: tuple[str, ...],
        config: ReadingConfig,
    ) -> None:
        self._open = ExitStack()
        kept_in = self._open.enter_context(open_store(store or NO_STORE))
        reader = resolve_reader(model, config=config, base_url=base_url)
        self._agent = create_memagent(reader, config=config, store=kept_in, namespace=namespace)

    def __call__(self, batch: pa.Table) -> pa.Table:
        results = asyncio.run(self._read(batch.to_pylist()))
        answers = pa.Table.from_pylist([_answer(result) for result in results], schema=_ANSWER)
        for name in _ANSWER.names:
            if name in batch.column_names:
                message = f"The dataset has a column {name!r} already: rename it."
                raise ConfigurationError(message)
        for name, column in zip(answers.column_names, answers.columns, strict=True):
            batch = batch.append_column(name, column)
        return batch

    async def _read(self, rows: list[dict[str, Any]]) -> list[Result]:
        tasks = [
            {"id": number, "question": row["question"], "document": _document(row)}
            for number, row in enumerate(rows)
        ]
        found = {}
        async for result in read_many(self._agent, tasks, concurrency=len(tasks)):
            found[result.id] = result
        return [found[str(number)] for number in range(len(rows))]


def _document(row: dict[str, Any]) -> Any:
    for column in ("document", "text"):
        if row.get(column) is not None:
            return row[column]
    raise ConfigurationError('A row needs a `document`: text, {"path": ...}, or a list of these.')


def _answer(result: Result) -> dict[str, Any]:
    if result.output is None:
        return {"error": f"{type(result.error).__name__}: {result.error}"}
    output = result.output
    usage = {key: output["usage"][key] for key in ("calls", "input_tokens", "output_tokens")}
    return {key: output[key] for key in ("answer", "memory", "coverage", "version")} | usage
