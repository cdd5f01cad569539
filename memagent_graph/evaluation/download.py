"""Download the files of public benchmarks, from where their authors keep them or a mirror."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import IO, TYPE_CHECKING, NamedTuple

from memagent_graph.errors import ConfigurationError, MissingDependencyError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT = 60.0
"""Seconds without a byte after which a server counts as gone."""


class Origin(NamedTuple):
    """The place of a benchmark's files.

    Attributes:
        place: a data set of the Hugging Face Hub, or a URL that ends with a slash.
        files: paths of the files there.
    """

    place: str
    files: tuple[str, ...]


BENCHMARKS = {
    "ruler_hqa": Origin(
        "BytedTsinghua-SIA/hotpotqa",
        tuple(f"eval_{50 * 2**power}.json" for power in range(8)),
    ),
    "hotpotqa": Origin(
        "http://curtis.ml.cmu.edu/datasets/hotpot/", ("hotpot_dev_distractor_v1.json",)
    ),
    "squad": Origin(
        "https://rajpurkar.github.io/SQuAD-explorer/dataset/", ("dev-v1.1.json", "dev-v2.0.json")
    ),
    "locomo": Origin(
        "https://raw.githubusercontent.com/snap-research/locomo/main/data/", ("locomo10.json",)
    ),
    "longmemeval": Origin(
        "xiaowu0162/longmemeval-cleaned",
        ("longmemeval_oracle.json", "longmemeval_s_cleaned.json"),
    ),
    "longmemeval_m": Origin("xiaowu0162/longmemeval-cleaned", ("longmemeval_m_cleaned.json",)),
    "beam": Origin(
        "Mohammadta/BEAM",
        tuple(f"data/{size}-00000-of-00001.parquet" for size in ("100K", "500K", "1M")),
    ),
    "beam_10m": Origin(
        "Mohammadta/BEAM-10M",
        tuple(f"data/10M-{number:05}-of-00002.parquet" for number in range(2)),
    ),
}
"""Benchmarks by name. Each has a licence of its own."""


def download(name: str, folder: Path, *, endpoint: str | None = None) -> list[Path]:
    """Download a benchmark, or one file of it, into a folder.

    Files that exist are kept. A file gets its name when it is complete: after an interruption,
    the same call continues with the file that is missing. Servers get no access token and no
    telemetry.

    Args:
        name: a name of `BENCHMARKS`, alone or with one of its files: `ruler_hqa/eval_50.json`.
        folder: folder for the files; made if it is missing.
        endpoint: a mirror to ask instead. It serves data sets as the Hugging Face Hub does, and
            other files under the name of their host: `ENDPOINT/raw.githubusercontent.com/...`.
            By default, data sets come from `HF_ENDPOINT`, or else from the Hub.

    Returns:
        The files.

    Raises:
        ConfigurationError: There is no such benchmark or file.
        MissingDependencyError: huggingface_hub is not installed.
        SourceError: A file could not be downloaded.

    Example:
        >>> download("ruler_hqa/eval_50.json", Path("data"))  # doctest: +SKIP
        [PosixPath('data/eval_50.json')]
    """
    benchmark, _, wanted = name.partition("/")
    origin = BENCHMARKS.get(benchmark)
    if origin is None:
        message = f"There is no benchmark {benchmark!r}. Choose from: {', '.join(BENCHMARKS)}."
        raise ConfigurationError(message)
    files = [file for file in origin.files if wanted in {"", file, Path(file).name}]
    if not files:
        message = f"{benchmark} has no file {wanted!r}. Choose from: {', '.join(origin.files)}."
        raise ConfigurationError(message)
    endpoint = endpoint.rstrip("/") if endpoint else None
    fetch = _fetch_url if origin.place.endswith("/") else _fetch_from_hub
    return [fetch(origin.place, file, folder, endpoint) for file in files]


def _fetch_from_hub(repo: str, file: str, folder: Path, endpoint: str | None) -> Path:
    try:
        from huggingface_hub import hf_hub_download, hf_hub_url
    except ImportError as error:
        message = 'To download data sets: pip install "memagent-graph[eval]"'
        raise MissingDependencyError(message) from error
    target = folder / file
    if target.exists():
        return target
    try:
        with _no_telemetry():
            hf_hub_download(
                repo, file, repo_type="dataset", local_dir=folder, endpoint=endpoint, token=False
            )
    except Exception as error:
        # The hub's errors, those of its HTTP library and those of the disk have no common base.
        url = hf_hub_url(repo, file, repo_type="dataset", endpoint=endpoint)
        raise _failure(url, target, error, "set HF_ENDPOINT to a mirror") from error
    return target


@contextmanager
def _no_telemetry() -> Iterator[None]:
    """Ask for nothing but the file.

    To describe who calls, the hub's library asks huggingface.co for a list of agents, even where
    another endpoint is named, and keeps the reply on disk.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_DISABLE_TELEMETRY
    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = before


def _fetch_url(place: str, file: str, folder: Path, endpoint: str | None) -> Path:
    import httpx

    target = folder / file
    if target.exists():
        return target
    url = place + file
    if endpoint is not None:
        url = f"{endpoint}/{url.partition('://')[2]}"
    try:
        with (
            httpx.stream("GET", url, follow_redirects=True, timeout=_TIMEOUT) as response,
            _write_whole(target) as part,
        ):
            response.raise_for_status()
            for block in response.iter_bytes():
                part.write(block)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise _failure(url, target, error, "name a mirror") from error
    return target


@contextmanager
def _write_whole(target: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when all is written, and is removed if that fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{token_hex(4)}")
    try:
        with part.open("xb") as stream:
            yield stream
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _failure(url: str, target: Path, error: Exception, advice: str) -> SourceError:
    why = " ".join(str(error).split()) or type(error).__name__
    return SourceError(
        f"{url} could not be downloaded: {why.rstrip('.')}. Try again, {advice}, or download it "
        f"by other means and save it as {target}."
    )
