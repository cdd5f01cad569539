"""Turn a Ray dataset of tasks into a dataset of answers, with actors that hold an engine each."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from ray.data import ActorPoolStrategy

from memagent_graph import ReadingConfig, create_memagent, read_many
from memagent_graph.errors import ConfigurationError
from memagent_graph.memory.items import NAMESPACE, check_namespace
from memagent_graph.memory.stores import NO_STORE, open_store
from memagent_graph.readers.resolve import resolve_reader

if TYPE_CHECKING:
    from collections.abc import Sequence

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
            that every node can open, a list is several documents. A column has values of one kind:
            if some rows have texts and others files, put the texts into a column `text`. Other
            columns are kept.
        model: a model string, as for `create_memagent`; each actor creates its own model.
        base_url: URL of an OpenAI-compatible server.
        store: Redis URL of the store that all actors share; None for no store.
        namespace: namespace of the memories in the store.
        config: settings of the readings.
        actors: number of actors, or the least and greatest number.
        batch_size: rows that an actor reads at once.
        num_cpus: CPUs per actor.
        num_gpus: GPUs per actor; a fraction shares a GPU.

    Returns:
        A lazy dataset. Besides its own columns, each row has `answer`, `memory`, `coverage`,
        `calls`, `input_tokens`, `output_tokens`, `version`, and `error`, which is null on success.

    Examples:
        >>> import ray
        >>> from memagent_ray import read_dataset
        >>> lease = {"question": "Who signed it?", "document": "Ann Kestrel signed it."}
        >>> answers = read_dataset(ray.data.from_items([lease]), model="extractive")
        >>> [row["answer"] for row in answers.take_all()]
        ['Ann Kestrel signed it.']
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
        # By default, Ray restarts a lost actor and its batch without limit, which stored memories
        # make cheap.
    )


class _ReadingActor:
    """An actor that holds a reader, its engine and its connection to the store."""

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
