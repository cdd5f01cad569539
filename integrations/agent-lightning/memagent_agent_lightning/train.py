"""Start Agent Lightning's trainer with a recipe. This needs its packages, verl and GPUs."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from importlib.resources import files
from pathlib import Path
from typing import Any


def compose_recipe(recipe: Path, overrides: list[str]) -> Any:
    """Return the trainer's settings, overridden by a recipe and then by `key=value` pairs.

    Raises:
        ConfigAttributeError: The trainer has no such setting.
    """
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    folder = str(files("agentlightning").joinpath("verl"))
    with initialize_config_dir(config_dir=folder, version_base=None):
        settings = compose("config")
    OmegaConf.set_struct(settings.agentlightning.local.env_map, False)  # noqa: FBT003 - its only form
    return OmegaConf.merge(settings, OmegaConf.load(recipe), OmegaConf.from_dotlist(overrides))


def main() -> None:
    """`python -m memagent_agent_lightning.train RECIPE TRAIN.jsonl VAL.jsonl [key=value ...]`."""
    parser = ArgumentParser(description=__doc__)
    for name in ("recipe", "train", "val"):
        parser.add_argument(name, type=Path)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()

    from agentlightning.verl.entrypoint import run_ppo

    run_ppo(
        compose_recipe(given.recipe, given.overrides),
        train_dataset=_rows(given.train),
        val_dataset=_rows(given.val),
    )


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


if __name__ == "__main__":
    main()
