import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from release.packages import MAIN, PROJECTS, Built, Environment, build


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> dict[str, Built]:
    folders = [tmp_path_factory.mktemp(name) for name in PROJECTS]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(PROJECTS, pool.map(build, PROJECTS, folders), strict=True))


@pytest.fixture(scope="session")
def main(built) -> Built:
    return built[MAIN]


@pytest.fixture
def environment(tmp_path_factory) -> Iterator[Environment]:
    """An empty one, always in the same folder, so that what one compiled serves the next."""
    folder = tmp_path_factory.getbasetemp() / "environment"
    folder.mkdir()
    yield Environment(folder)
    shutil.rmtree(folder)
