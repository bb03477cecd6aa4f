"""Loading data sets. A set is looked for in the folder the caller names, in the cache, and at its sources.
What a source gives is checked against the known SHA-256 of the arrays and cached as one .npz file."""

import hashlib
import os
import re
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tramark.errors import DataError, one_line
from tramark.lab.data import decode
from tramark.lab.data.catalog import SETS, Spec
from tramark.lab.data.dataset import Dataset, Kind
from tramark.lab.data.decode import Array, Arrays


@dataclass(frozen=True)
class Available:
    """One line of the list of data sets."""

    name: str
    what: str
    classes: int
    cached: bool


def load(name: str | Path, *, data_dir: Path | None = None, cache_dir: Path | None = None) -> Dataset:
    """The data set of this name, or in this .npz file.

    `data_dir` is a folder with .npz files named after their sets (`cifar100_20k.npz` for "cifar-100"); what
    is there goes before the cache and the sources, and is used as it is. "auto" is Fashion-MNIST or, where no
    source of it answers, scikit-learn's digits: the result's `name` tells which.

    >>> load("imagenet")
    Traceback (most recent call last):
    ...
    tramark.errors.DataError: no data set named 'imagenet'; there are mnist, ...
    """
    if name == "auto":
        try:
            return load("fashion-mnist", data_dir=data_dir, cache_dir=cache_dir)
        except DataError:
            return load("digits", data_dir=data_dir, cache_dir=cache_dir)
    if Path(name).suffix == ".npz":
        path = Path(name)
        return _dataset(path.stem, None, _read(path))
    return _dataset(str(name), _spec(str(name)), _read(find(str(name), data_dir=data_dir, cache_dir=cache_dir)))


def find(name: str, *, data_dir: Path | None = None, cache_dir: Path | None = None) -> Path:
    """The file of a set: the one in `data_dir`, the one in the cache, or else it is fetched into the cache."""
    _spec(name)
    return (_find(name, data_dir) if data_dir else None) or get(name, cache_dir=cache_dir)


def sentences(name: str, *, data_dir: Path | None = None, cache_dir: Path | None = None) -> tuple[list[str], list[str]]:
    """The training and test sentences of a text set, in the order of the rows that `load` gives."""
    path = find(name, data_dir=data_dir, cache_dir=cache_dir)
    try:
        return decode.npz_sentences(path)
    except KeyError:
        raise DataError(
            f"{path} holds no sentences (train_text), only their tokens: fetch the set anew, or give such a file"
        ) from None


def get(name: str, *, cache_dir: Path | None = None) -> Path:
    """Fetches a set into the cache, unless it is there, and returns the path of its file."""
    spec, path = _spec(name), _cached(name, cache_dir)
    if path.exists():
        return path
    failures = []
    for source in spec.sources:
        try:
            arrays = source.arrays()
            _check(arrays, spec)
            _dataset(name, spec, arrays)
        except (OSError, ValueError, KeyError) as error:
            failures.append(f"{source.label}: {one_line(error)}")
        except ImportError as error:
            failures.append(f"{source.label}: {one_line(error)} (pip install 'tramark[lab]')")
        else:
            _write(path, arrays)
            return path
    raise DataError(
        f"{name} is not in the cache and no source gave it ({'; '.join(failures)}); "
        "a folder that holds it as .npz can be named as data_dir"
    )


def available(*, cache_dir: Path | None = None) -> list[Available]:
    """The sets that can be asked for by name.

    >>> [entry.name for entry in available()][:3]
    ['mnist', 'fashion-mnist', 'cifar-10']
    """
    return [Available(name, spec.what, spec.classes, _cached(name, cache_dir).exists()) for name, spec in SETS.items()]


def _spec(name: str) -> Spec:
    if name not in SETS:
        raise DataError(f"no data set named {name!r}; there are {', '.join(SETS)}, or give the path of an .npz file")
    return SETS[name]


def _cached(name: str, cache_dir: Path | None) -> Path:
    if cache_dir is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cache_dir = Path(os.environ.get("TRAMARK_CACHE") or Path(base) / "tramark")
    return cache_dir / f"{name}.npz"


def _find(name: str, folder: Path) -> Path | None:
    """The file of this set in the folder. A name that ends in a digit ends there: cifar10 is not cifar100."""
    if not folder.is_dir():
        raise DataError(f"data_dir {folder} is not a folder; it should hold .npz files named after their sets")
    pattern = re.compile(name.replace("-", "[-_]?") + (r"(?!\d).*" if name[-1].isdigit() else ".*"))
    found = sorted(path for path in folder.glob("*.npz") if pattern.fullmatch(path.stem.lower()))
    if len(found) > 1:
        raise DataError(f"data_dir has several files for {name}: {', '.join(path.name for path in found)}; keep one")
    return found[0] if found else None


def _read(path: Path) -> Arrays:
    try:
        return decode.npz(path)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as a data set: {one_line(error)}") from error


def _write(path: Path, arrays: Arrays) -> None:
    """Written aside and renamed, so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=path.stem, suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _check(arrays: Arrays, spec: Spec) -> None:
    if spec.sha256 is None:
        return
    for key, known in zip(("train_images", "train_labels", "test_images", "test_labels"), spec.sha256, strict=True):
        found = hashlib.sha256(np.ascontiguousarray(arrays[key]).data).hexdigest()
        if found != known:
            raise ValueError(f"{key} have SHA-256 {found[:12]}…, not the known {known[:12]}…")


def _dataset(name: str, spec: Spec | None, arrays: Arrays) -> Dataset:
    kinds: dict[str, Kind] = {"images": "image", "features": "tabular", "tokens": "text"}
    key, kind = next((key, kind) for key, kind in kinds.items() if f"train_{key}" in arrays)
    train, test = (_inputs(arrays[f"{split}_{key}"], kind) for split in ("train", "test"))
    train_labels, test_labels = (
        torch.from_numpy(arrays[f"{split}_labels"].astype(np.int64)) for split in ("train", "test")
    )
    if not len(train) or not len(test):
        raise DataError(f"{name}: {len(train)} training and {len(test)} test samples; both are needed")
    classes = spec.classes if spec else int(max(train_labels.max(), test_labels.max())) + 1
    try:
        return Dataset(
            name,
            train,
            train_labels,
            test,
            test_labels,
            classes,
            kind,
            mean=spec.mean if spec else (),
            std=spec.std if spec else (),
            augment=spec.augment if spec else False,
            vocabulary=int(max(train.max(), test.max())) + 1 if kind == "text" else 0,
        )
    except ValueError as error:
        raise DataError(str(error)) from error


def _inputs(array: Array, kind: Kind) -> Tensor:
    if kind != "image":
        return torch.from_numpy(array)
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[-1] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(array))
