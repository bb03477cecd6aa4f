"""Data sets: decoders on small files made here, the cache, and what happens when a source fails."""

import gzip
import hashlib
import io
import json
import struct
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

from tramark.errors import DataError
from tramark.lab.data import Dataset, available, decode, fetch, find, get, load, sentences, sources
from tramark.lab.data.catalog import SETS, Source, Spec

Bytes = npt.NDArray[np.uint8]


def pixels(*shape: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(array: Bytes) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def png(array: Bytes) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "png")
    return buffer.getvalue()


def parquet_bytes(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def arrays(seed: int = 0) -> decode.Arrays:
    return {
        "train_images": pixels(6, 8, 8, seed=seed),
        "train_labels": np.arange(6, dtype=np.uint8) % 2,
        "test_images": pixels(4, 8, 8, seed=seed + 1),
        "test_labels": np.arange(4, dtype=np.uint8) % 2,
    }


def digests(given: decode.Arrays) -> tuple[str, str, str, str]:
    a, b, c, d = (hashlib.sha256(array.tobytes()).hexdigest() for array in given.values())
    return a, b, c, d


def failing(reason: str) -> Source:
    def fail() -> decode.Arrays:
        raise OSError(reason)

    return Source(f"the {reason} place", fail)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.booleans())
def test_idx_round_trip(shape: list[int], zipped: bool) -> None:
    array = pixels(*shape)
    data = idx_bytes(array)
    np.testing.assert_array_equal(decode.idx(gzip.compress(data) if zipped else data), array)


@pytest.mark.parametrize("data", [b"", b"\0\0\x0d\x01\0\0\0\1\0", idx_bytes(pixels(3, 3))[:-1]])
def test_idx_refuses_what_is_not_one(data: bytes) -> None:
    with pytest.raises(ValueError, match="idx"):
        decode.idx(data)


def test_idx_files_are_found_by_name() -> None:
    images = arrays()
    files = {
        "train-images-idx3-ubyte.gz": gzip.compress(idx_bytes(images["train_images"])),
        "train-labels-idx1-ubyte": idx_bytes(images["train_labels"]),
        "t10k-images.idx3-ubyte": idx_bytes(images["test_images"]),
        "t10k-labels-idx1-ubyte": idx_bytes(images["test_labels"]),
        "README": b"",
    }
    found = decode.idx_files(files)
    for key, array in images.items():
        np.testing.assert_array_equal(found[key], array)
    del files["t10k-images.idx3-ubyte"]
    with pytest.raises(ValueError, match=r"one file t10k-images.* README"):
        decode.idx_files(files)


def test_cifar10_sheets_hold_one_image_a_row() -> None:
    first, second, test = (pixels(3, 32, 32, 3, seed=seed) for seed in range(3))
    files = {
        "data_batch_2.png": png(second.reshape(3, 1024, 3)),
        "data_batch_1.png": png(first.reshape(3, 1024, 3)),
        "test_batch.png": png(test.reshape(3, 1024, 3)),
        "train_lables.json": json.dumps([0, 1, 2, 3, 4, 5]).encode(),
        "test_lables.json": json.dumps([6, 7, 8]).encode(),
    }
    found = decode.cifar10_sheets(files)
    np.testing.assert_array_equal(found["train_images"], np.concatenate([first, second]))
    np.testing.assert_array_equal(found["test_images"], test)
    assert found["train_labels"].tolist() == [0, 1, 2, 3, 4, 5]


def test_hub_images_come_back_in_the_published_order() -> None:
    images = pixels(10, 32, 32, 3)
    # The hub's order of the batches, two images each here.
    order = [6, 7, 4, 5, 2, 3, 8, 9, 0, 1]
    rows = [{"img": {"bytes": png(images[i]), "path": None}, "label": i} for i in order]
    files = {"train-0.parquet": parquet_bytes(rows), "test-0.parquet": parquet_bytes(rows[:2])}
    found = decode.cifar10_parquet(files)
    np.testing.assert_array_equal(found["train_images"], images)
    assert found["train_labels"].tolist() == list(range(10))
    assert found["test_labels"].tolist() == [6, 7]


def test_grey_hub_images_have_no_channel_and_validation_stands_in_for_test() -> None:
    image = pixels(5, 5)
    data = parquet_bytes([{"image": {"bytes": png(image), "path": None}, "label": 3}])
    files = {"train-0.parquet": data, "valid-0.parquet": data}
    found = decode.parquet_images(files, image="image", label="label", mode="L")
    np.testing.assert_array_equal(found["train_images"], image[None])
    np.testing.assert_array_equal(found["test_images"], image[None])


def test_sentences_become_word_ids() -> None:
    train = parquet_bytes([{"sentence": "a Good film", "label": 1}, {"sentence": "a bad film", "label": 0}])
    test = parquet_bytes([{"sentence": "film unheard", "label": 1}])
    files = {"train-0.parquet": train, "validation-0.parquet": test}
    found = decode.parquet_sentences(files, sentence="sentence", label="label")
    assert found["train_tokens"].shape == (2, 48)
    assert found["train_tokens"][:, :4].tolist() == [[2, 1, 3, 0], [2, 1, 3, 0]]
    assert found["test_tokens"][0, :3].tolist() == [3, 1, 0]
    assert found["test_labels"].tolist() == [1]


def test_sentences_are_kept_beside_their_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        f"{split}-0.parquet": parquet_bytes([{"sentence": text, "label": 1} for text in texts])
        for split, texts in (("train", ["A good film", "bad\n film "]), ("validation", ["bad"]))
    }
    source = Source("here", lambda: decode.parquet_sentences(files, sentence="sentence", label="label"))
    monkeypatch.setitem(SETS, "sst2", Spec("films", 2, (source,)))
    assert sentences("sst2", cache_dir=tmp_path) == (["A good film", "bad film"], ["bad"])
    assert load("sst2", cache_dir=tmp_path).kind == "text"
    assert find("sst2", cache_dir=tmp_path) == tmp_path / "sst2.npz"


def test_vocabulary_keeps_the_most_frequent_words() -> None:
    train, _ = decode.tokenise(["c c c b b a a z"], [""], words=2, length=9)
    assert train[0].tolist() == [2, 2, 2, 1, 1, 3, 3, 1, 0]


def test_adult_is_standardised_by_its_training_rows() -> None:
    rows = [
        f"{age},{work},{income}"
        for age, work, income in zip((20, 40, 90, 60, 80, 10), "abcabc", ("<=50K", ">50K") * 3, strict=True)
    ]
    found = decode.adult_csv({"adult.csv": "\n".join(["age,workclass,income", *rows]).encode()})
    train, test = found["train_features"], found["test_features"]
    assert train.shape == (4, 4)
    assert train.dtype == np.float32
    assert train[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert train[:, 0].std() == pytest.approx(1, abs=1e-6)
    assert test[:, 1:].tolist() == [[0, 0, 1], [0, 0, 1]]
    assert found["train_labels"].tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (8, 8, 3), (3, 8, 8)])
def test_any_npz_of_images_is_a_data_set(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = pixels(5, *shape)
    path = tmp_path / "mine.npz"
    labels = np.array([[0], [1], [2], [0], [1]])
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    data = load(path)
    assert (data.name, data.classes, data.kind) == ("mine", 3, "image")
    assert data.input_shape == {(8, 8): (1, 8, 8), (8, 8, 1): (1, 8, 8)}.get(shape, (3, 8, 8))
    first = np.moveaxis(images[0], -1, 0) if shape[-1] in (1, 3) else images[0].reshape(data.input_shape)
    np.testing.assert_array_equal(data.train_inputs[0].numpy(), first)
    assert data.prepare(data.train_inputs).min() >= -1


def test_npz_may_hold_jpeg_sentences_or_categories(tmp_path: Path) -> None:
    encoded = [png(pixels(8, 8, 3, seed=seed)) for seed in range(2)]
    blob = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    offsets = np.cumsum([0] + [len(data) for data in encoded])
    labels = np.array([0, 1])
    np.savez(
        tmp_path / "tiny_imagenet_small.npz",
        train_jpeg=blob, train_offsets=offsets, train_labels=labels,
        val_jpeg=blob, val_offsets=offsets, val_labels=labels,
    )  # fmt: skip
    text = np.frombuffer(b"good film\nbad film\n", dtype=np.uint8)
    np.savez(tmp_path / "sst2.npz", train_text=text, train_labels=labels, test_text=text, test_labels=labels)
    rows = np.array([[1], [0]])
    np.savez(
        tmp_path / "adult_uci.npz", vocab_0=["x", "y", "z"],
        train_num=rows, train_cat=rows, train_labels=labels,
        test_num=rows, test_cat=rows, test_labels=labels,
    )  # fmt: skip

    images = load("tiny-imagenet", data_dir=tmp_path)
    np.testing.assert_array_equal(images.train_inputs[1].permute(1, 2, 0).numpy(), pixels(8, 8, 3, seed=1))
    assert images.classes == 200

    films = load("sst2", data_dir=tmp_path)
    assert (films.kind, films.vocabulary, films.input_shape) == ("text", 3, (48,))
    assert sentences("sst2", data_dir=tmp_path)[0] == ["good film", "bad film"]

    table = load("adult", data_dir=tmp_path)
    assert table.kind == "tabular"
    assert table.train_inputs.tolist() == [[1, 0, 1, 0], [-1, 1, 0, 0]]


def test_data_dir_tells_cifar10_from_cifar100(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar100_20k.npz", **arrays())  # type: ignore[arg-type]
    assert sources._find("cifar-100", tmp_path) == tmp_path / "cifar100_20k.npz"
    assert sources._find("cifar-10", tmp_path) is None
    np.savez(tmp_path / "CIFAR-100.npz", **arrays())  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"CIFAR-100.npz, cifar100_20k.npz"):
        sources._find("cifar-100", tmp_path)
    with pytest.raises(DataError, match="not a folder"):
        load("mnist", data_dir=tmp_path / "missing")


def test_sources_are_tried_in_order_and_the_first_good_one_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = arrays(), arrays(seed=7)
    calls: list[str] = []

    def source(label: str, given: decode.Arrays) -> Source:
        def fetched() -> decode.Arrays:
            calls.append(label)
            return given

        return Source(label, fetched)

    spec = Spec("", 2, (failing("dead"), source("forged", bad), source("true", good)), sha256=digests(good))
    monkeypatch.setitem(SETS, "toy", spec)
    for _ in range(2):
        data = load("toy", cache_dir=tmp_path)
        np.testing.assert_array_equal(data.train_inputs[:, 0].numpy(), good["train_images"])
    assert calls == ["forged", "true"]
    assert [path.name for path in tmp_path.iterdir()] == ["toy.npz"]
    assert next(entry for entry in available(cache_dir=tmp_path) if entry.name == "toy").cached


def test_failure_names_every_source_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forged = Source("forgery", arrays)
    known = digests(arrays(seed=7))
    monkeypatch.setitem(SETS, "toy", Spec("", 2, (failing("dead"), forged), sha256=known))
    with pytest.raises(DataError) as caught:
        get("toy", cache_dir=tmp_path)
    message = str(caught.value)
    assert "the dead place: dead" in message
    assert f"forgery: train_images have SHA-256 {digests(arrays())[0][:12]}" in message
    assert "\n" not in message
    assert not list(tmp_path.iterdir())


def test_auto_falls_back_to_digits_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "fashion-mnist", replace(SETS["fashion-mnist"], sources=(failing("dead"),)))
    data = load("auto", cache_dir=tmp_path)
    assert data.name == "digits"
    assert data.input_shape == (1, 8, 8)
    assert len(data.train_inputs) + len(data.test_inputs) == 1797
    assert int(data.train_inputs.max()) == 255


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TRAMARK_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a/mnist.npz"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/tramark/mnist.npz"),
        ({"HOME": "/c"}, "/c/.cache/tramark/mnist.npz"),
    ],
)
def test_cache_lies_where_the_environment_says(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRAMARK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert sources._cached("mnist", None) == Path(expected)


def test_unreadable_files_are_data_errors(tmp_path: Path) -> None:
    (tmp_path / "junk.npz").write_bytes(b"PK\x03\x04 no zip")
    np.savez(tmp_path / "odd.npz", x=np.zeros(3))
    np.savez(tmp_path / "pickled.npz", train_labels=np.array([{}]), test_labels=np.zeros(1))
    for name in ("junk", "odd", "pickled", "missing"):
        with pytest.raises(DataError, match=f"{name}.npz cannot be read as a data set: ."):
            load(tmp_path / f"{name}.npz")


def test_untar_reads_files_by_base_name() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("../../package/data/x.bin")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))
    assert fetch.untar(buffer.getvalue()) == {"x.bin": b"abc"}
    with pytest.raises(OSError, match="tar archive"):
        fetch.untar(b"nothing of the kind")


def test_run_says_what_went_wrong(tmp_path: Path) -> None:
    assert fetch.run(["echo", "hello"], str(tmp_path)) == b"hello\n"
    with pytest.raises(OSError, match="no no-such-command on this machine"):
        fetch.run(["no-such-command"], str(tmp_path))
    with pytest.raises(OSError, match="failed: E: gone"):
        fetch.run(["sh", "-c", "echo W: hm >&2; echo E: gone >&2; exit 3"], str(tmp_path))


def test_prepare_normalises_by_channel() -> None:
    images = torch.tensor([0, 128, 255], dtype=torch.uint8).view(1, 3, 1, 1).repeat(2, 1, 4, 4)
    labels = torch.zeros(2, dtype=torch.int64)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    data = Dataset("toy", images, labels, images, labels, classes=2, mean=mean, std=std)
    expected = (images.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(data.prepare(images).double(), expected, atol=1e-6, rtol=0)
    with pytest.raises(TypeError, match="uint8"):
        data.prepare(images.float())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_inputs": torch.zeros(3, 1, 4, 4)}, "train inputs are torch.float32"),
        ({"test_labels": torch.tensor([0, 1])}, "one for each of the 3 inputs"),
        ({"classes": 2}, r"labels must lie in 0\.\.1"),
        ({"test_inputs": torch.zeros(3, 1, 5, 5, dtype=torch.uint8)}, "must be the same"),
        ({"mean": (0.1, 0.2)}, "mean has 2 values"),
    ],
)
def test_data_sets_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    images, labels = torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 2])
    data = Dataset("toy", images, labels, images, labels, classes=3)
    with pytest.raises(ValueError, match=message):
        replace(data, **change)
