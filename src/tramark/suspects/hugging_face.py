"""Models in Hugging Face folders: image classifiers with safetensors weights and no code of their own.

How such a model is fed stands in the folder's preprocessor_config.json, and is used where the user states nothing
else.
"""

import importlib
import json
from functools import partial
from pathlib import Path
from typing import Any

from tramark.errors import SuspectError, one_line
from tramark.suspects.base import About, Loaded
from tramark.suspects.forward import forward

RESAMPLING = {0: "nearest", 2: "bilinear", 3: "bicubic"}


def load_folder(folder: Path) -> Loaded:
    """The image classifier in a folder, with its labels' names and how the folder says that it is fed."""
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
    channels = getattr(module.config, "num_channels", None)
    return Loaded(partial(forward, module), About(names=names, stated=_stated(folder, channels)))


def _stated(folder: Path, channels: Any) -> dict[str, Any]:
    """The conventions that the folder states, by the names of `Conventions`; none if it states none."""
    file = folder / "preprocessor_config.json"
    if not file.is_file():
        return {}
    try:
        told = json.loads(file.read_bytes())
        stated: dict[str, Any] = {"colour": {1: "grey", 3: "rgb"}.get(channels)}
        if told.get("do_resize", True):
            stated |= {"size": _size(told["size"])}
            stated |= {"resample": RESAMPLING[told.get("resample", 2)]}
        if told.get("do_center_crop", False):
            stated |= {"crop": _size(told["crop_size"])}
        factor = told.get("rescale_factor", 1 / 255) if told.get("do_rescale", True) else 1.0
        stated |= {"value_range": [0.0, 255 * factor]}
        if told.get("do_normalize", True):
            stated |= {"mean": told["image_mean"], "std": told["image_std"]}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise SuspectError(f"{file} does not say how the model is fed ({one_line(error)})") from error
    return {name: value for name, value in stated.items() if value is not None}


def _size(told: Any) -> list[int]:
    """Height and width. Questions are square, so their shortest edge is both."""
    if isinstance(told, int):
        return [told, told]
    edge = told.get("shortest_edge")
    return [edge, edge] if edge is not None else [told["height"], told["width"]]
