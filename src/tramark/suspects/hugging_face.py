"""Suspects in Hugging Face model folders: image classifiers with safetensors weights and no code of their own."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from tramark.errors import SuspectError, one_line
from tramark.suspects.conventions import Conventions
from tramark.suspects.module import ModuleSuspect


def hugging_face_suspect(folder: Path, conventions: Conventions) -> ModuleSuspect:
    """The image classifier in a folder. If `conventions.labels` are names, its own names are mapped by them."""
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise SuspectError(f"{folder} is not a Hugging Face model folder with a config.json and safetensors weights")
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise SuspectError("a Hugging Face folder needs transformers: pip install transformers") from error
    try:
        module: Any = transformers.AutoModelForImageClassification.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
        names: dict[int, str] = {int(index): str(name) for index, name in module.config.id2label.items()}
    except Exception as error:
        raise SuspectError(f"{folder} cannot be loaded as an image classifier ({one_line(error)})") from error
    if conventions.labels is not None:
        numbers = {index: conventions.answers([name], 1).labels.item() for index, name in names.items()}
        if any(number >= 0 for number in numbers.values()):
            conventions = replace(conventions, labels={index: int(number) for index, number in numbers.items()})
    return ModuleSuspect(module, conventions)
