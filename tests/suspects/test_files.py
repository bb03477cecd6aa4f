"""What must be true of suspects in memory and in files."""

import json
import pickle
import struct
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nets import headed
from safetensors.torch import save_file
from torch import Tensor, nn

from tramark.errors import BudgetSpent, SettingError, SuspectError
from tramark.evidence.statistics import NO_ANSWER
from tramark.keys import sources
from tramark.keys.keyring import Keyring
from tramark.lab.models import build
from tramark.suspects.base import ask_in_batches
from tramark.suspects.conventions import Conventions
from tramark.suspects.exported import _operator as operator_named
from tramark.suspects.exported import load_exported
from tramark.suspects.files import open_suspect
from tramark.suspects.loaded import LoadedSuspect
from tramark.suspects.loading import load
from tramark.suspects.module import FunctionSuspect, ModuleSuspect
from tramark.suspects.operators import ALLOWED
from tramark.suspects.weights import built, factory, load_into, read_weights
from tramark.tracing.trace import trace

SHAPE = (1, 28, 28)
PREPARE = sources.for_shape(SHAPE, normalise=(0.29, 0.35)).prepare


def questions(count: int = 5, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build("small-cnn", input_shape=SHAPE, classes=10, seed=1)


def expected(model: nn.Module, raw: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(PREPARE(raw)).argmax(1)  # type: ignore[no-any-return]


def opened(path: Path, *, conventions: Any, model: Any = None, output: str | None = None) -> LoadedSuspect:
    """The suspect in a file, loaded in this process: what files may hold is tested here, where they run elsewhere."""
    return LoadedSuspect(load(path, model=built(model) if model else None, output=output), conventions, path=path)


class TestConventions:
    def test_ranges_and_normalisation(self) -> None:
        raw = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2)
        assert Conventions().inputs(raw).flatten().tolist() == [0, 1]
        assert Conventions(value_range=(0, 255)).inputs(raw).flatten().tolist() == [0, 255]
        assert Conventions(value_range=(-1, 1)).inputs(raw).flatten().tolist() == [-1, 1]
        assert Conventions(mean=(0.5,), std=(0.25,)).inputs(raw).flatten().tolist() == [-2, 2]
        assert Conventions(value_range=(0, 255), dtype="uint8").inputs(raw).dtype == torch.uint8

    def test_our_own_preparation_is_exact(self) -> None:
        raw = questions()
        assert torch.equal(Conventions(prepare=PREPARE).inputs(raw), PREPARE(raw))
        assert torch.allclose(Conventions(mean=(0.29,), std=(0.35,)).inputs(raw), PREPARE(raw), atol=1e-6)

    def test_channels(self) -> None:
        raw = questions(shape=(3, 4, 6))
        plain = Conventions().inputs(raw)
        assert torch.equal(Conventions(colour="bgr").inputs(raw), plain[:, [2, 1, 0]])
        assert torch.equal(Conventions(layout="NHWC").inputs(raw), plain.permute(0, 2, 3, 1))
        assert torch.equal(Conventions(colour="rgb").inputs(raw), plain)
        grey = Conventions(colour="grey").pictures(raw).float()
        assert grey.shape == (5, 1, 4, 6)
        assert (grey[:, 0] - (raw * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1)).abs().max() <= 0.5
        coloured = Conventions(colour="rgb").pictures(questions())
        assert torch.equal(coloured, questions().expand(-1, 3, -1, -1))
        with pytest.raises(SuspectError, match="4 channels"):
            Conventions(colour="grey").inputs(questions(shape=(4, 4, 4)))

    def test_means_are_in_the_order_of_the_model(self) -> None:
        raw = torch.zeros(1, 3, 1, 1, dtype=torch.uint8)
        caffe = Conventions(colour="bgr", value_range=(0, 255), mean=(103.939, 116.779, 123.68))
        assert torch.allclose(caffe.inputs(raw).flatten(), -torch.tensor([103.939, 116.779, 123.68]))

    @given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 255))
    def test_a_flat_picture_stays_flat_in_any_size(self, height: int, width: int, grey: int) -> None:
        raw = torch.full((1, 1, 28, 28), grey, dtype=torch.uint8)
        resized = Conventions(size=(height, width)).pictures(raw)
        assert resized.shape == (1, 1, height, width)
        assert (resized == grey).all()

    def test_tables_and_tokens(self) -> None:
        rows, tokens = torch.randn(3, 4), torch.randint(0, 9, (3, 7))
        assert torch.equal(Conventions().inputs(rows), rows)
        assert torch.equal(Conventions(mean=(1, 2, 3, 4)).inputs(rows), rows - torch.tensor([1.0, 2, 3, 4]))
        assert torch.equal(Conventions().inputs(tokens), tokens)
        assert Conventions(dtype="int32").inputs(tokens).dtype == torch.int32
        with pytest.raises(SuspectError, match="3 means"):
            Conventions(mean=(1, 2, 3)).inputs(rows)

    def test_only_what_is_stated_changes(self) -> None:
        raw = questions()
        ours = PREPARE(raw)
        assert torch.equal(Conventions(prepare=PREPARE, labels=(1, 2)).inputs(raw), ours)
        assert torch.equal(Conventions(prepare=PREPARE, layout="NHWC").inputs(raw), ours.movedim(1, -1))
        assert torch.equal(Conventions(prepare=PREPARE, flat=True).inputs(raw), ours.flatten(1))
        assert torch.equal(Conventions(prepare=PREPARE, value_range=(0, 255)).inputs(raw), raw.float())
        assert torch.equal(Conventions(prepare=PREPARE, value_range=(0, 1)).inputs(raw), raw.float() * (1 / 255))
        assert torch.equal(Conventions(prepare=PREPARE, mean=(0.5,)).inputs(raw), Conventions(mean=(0.5,)).inputs(raw))

    def test_what_a_folder_states_comes_after_what_the_user_states(self) -> None:
        folder = {"size": [8, 8], "value_range": [0.0, 1.0], "mean": [0.5], "std": [0.5], "colour": "rgb"}
        fed = Conventions(prepare=PREPARE).under(folder)
        assert fed.inputs(questions()).shape == (5, 3, 8, 8)
        assert torch.equal(fed.inputs(questions()), (fed.pictures(questions()).float() * (1 / 255) - 0.5) / 0.5)
        stated = Conventions(prepare=PREPARE, value_range=(0, 255), size=(4, 4)).under(folder)
        assert (stated.size, stated.value_range, stated.mean) == ((4, 4), (0, 255), ())

    def test_the_middle_is_cut_out(self) -> None:
        raw = questions()
        assert torch.equal(Conventions(crop=(10, 6)).pictures(raw), raw[:, :, 9:19, 11:17])
        assert torch.equal(Conventions(size=(56, 56), resample="nearest").pictures(raw)[:, :, ::2, ::2], raw)
        with pytest.raises(SuspectError, match="cannot be cropped"):
            Conventions(crop=(29, 1)).pictures(raw)

    def test_whole_numbers_are_not_rounded_away(self) -> None:
        with pytest.raises(SuspectError, match="value_range"):
            Conventions(dtype="uint8").inputs(questions())

    @pytest.mark.parametrize(
        "wrong",
        [
            {"colour": "red"},
            {"layout": "HWC"},
            {"size": (0, 3)},
            {"size": (10**6, 3)},
            {"crop": (1,)},
            {"resample": "magic"},
            {"value_range": (0, float("inf"))},
            {"value_range": (1, 0)},
            {"std": (0.0,)},
            {"mean": (float("nan"),)},
            {"dtype": "nonsense"},
        ],
    )
    def test_nonsense_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(SuspectError):
            Conventions(**wrong)

    def test_labels_of_all_kinds(self) -> None:
        said = Conventions()
        assert said.answers(torch.tensor([3, 1]), 2).labels.tolist() == [3, 1]
        assert said.answers(torch.tensor([[3], [1]]), 2).labels.tolist() == [3, 1]
        assert said.answers(torch.tensor([[3, 2], [1, 0]]), 2).labels.tolist() == [3, 1]
        assert said.answers(["3", 1], 2).labels.tolist() == [3, 1]
        assert said.answers([None, -5, 10**30, "9" * 50], 4).labels.tolist() == [NO_ANSWER] * 4
        scores = torch.tensor([[0.1, 0.9], [0.7, 0.3]])
        answers = said.answers(scores, 2)
        assert answers.labels.tolist() == [1, 0]
        assert answers.scores is not None
        assert torch.equal(answers.scores, scores)

    @given(st.permutations(range(6)), st.integers(0, 2**31))
    def test_a_shuffled_order_is_undone(self, order: list[int], seed: int) -> None:
        ours = torch.rand(8, 6, generator=torch.Generator().manual_seed(seed))
        theirs = ours[:, order]
        for labels in (dict(enumerate(order)), {str(i): o for i, o in enumerate(order)}):
            answers = Conventions(labels=labels).answers(theirs, 8)
            assert torch.equal(answers.labels, ours.argmax(1))
            assert answers.scores is not None
            assert torch.equal(answers.scores, ours)
            assert torch.equal(Conventions(labels=labels).answers(theirs.argmax(1), 8).labels, ours.argmax(1))

    def test_names(self) -> None:
        named = Conventions(labels=("shirt", "bag"))
        assert named.answers(["bag", "shirt", "boot", None], 4).labels.tolist() == [
            1,
            0,
            NO_ANSWER,
            NO_ANSWER,
        ]
        with pytest.raises(SuspectError, match="names, such as 'bag'"):
            Conventions().answers(["bag"], 1)

    def test_an_unmapped_best_score_is_no_answer(self) -> None:
        answers = Conventions(labels={2: 0, 0: 1}).answers(torch.tensor([[0.1, 0.8, 0.1], [0.2, 0.1, 0.7]]), 2)
        assert answers.labels.tolist() == [NO_ANSWER, 0]

    def test_a_single_output_wants_a_threshold(self) -> None:
        said = torch.tensor([[0.2], [0.8]])
        assert Conventions(threshold=0.5).answers(said, 2).labels.tolist() == [0, 1]
        assert Conventions(threshold=0.5, labels={0: 1, 1: 0}).answers(said, 2).labels.tolist() == [1, 0]
        with pytest.raises(SuspectError, match="threshold"):
            Conventions().answers(said, 2)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_broken_scores_are_refused(self, bad: float) -> None:
        with pytest.raises(SuspectError, match="not numbers"):
            Conventions().answers(torch.tensor([[0.0, 1.0], [0.0, bad]]), 2)
        with pytest.raises(SuspectError, match="not numbers"):
            Conventions().answers(torch.full((1, 3), -torch.inf), 1)
        assert Conventions().answers(torch.tensor([[-torch.inf, 0.0]]), 1).labels.tolist() == [1]

    @pytest.mark.parametrize("shape", [(3, 10), (2, 10, 1), (), (2, 0), (0, 10)])
    def test_wrong_shapes_are_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(SuspectError, match="2 questions were asked"):
            Conventions().answers(torch.zeros(shape), 2)


def constant(said: Any, _: Tensor) -> Any:
    return said


class TestModule:
    def test_answers_as_the_module_does_and_leaves_it_as_it_was(self) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.BatchNorm1d(784), nn.Linear(784, 10))
        model[1].eval()
        raw, before = questions(9), {n: v.clone() for n, v in model.state_dict().items()}
        answers = ModuleSuspect(model, PREPARE, batch=4).ask(raw)
        assert [part.training for part in model] == [True, False, True, True]
        assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
        assert torch.equal(answers.labels, expected(model, raw))
        assert answers.scores is not None
        assert answers.scores.shape == (9, 10)
        assert not answers.scores.requires_grad

    def test_outputs_of_many_kinds(self) -> None:
        class Wrapped(nn.Module):
            def __init__(self, kind: str) -> None:
                super().__init__()
                self.kind = kind

            def forward(self, x: Tensor) -> Any:
                scores = torch.eye(10)[: len(x)]
                return {
                    "dict": {"logits": scores},
                    "tuple": (scores, x),
                    "text": "hello",
                    "short": scores[1:],
                }[self.kind]

        for kind in ("dict", "tuple"):
            assert ModuleSuspect(Wrapped(kind), PREPARE).ask(questions(3)).labels.tolist() == [0, 1, 2]
        with pytest.raises(SuspectError, match="returns str"):
            ModuleSuspect(Wrapped("text"), PREPARE).ask(questions(3))
        with pytest.raises(SuspectError, match="3 questions were asked"):
            ModuleSuspect(Wrapped("short"), PREPARE).ask(questions(3))

    def test_a_module_that_fails_is_told_in_one_line(self, model: nn.Module) -> None:
        with pytest.raises(SuspectError, match=r"fails on inputs of shape \(5, 3, 28, 28\)") as caught:
            ModuleSuspect(model, Conventions(colour="rgb")).ask(questions())
        assert "\n" not in str(caught.value)

    def test_what_was_answered_before_a_failure_is_kept(self) -> None:
        calls: list[int] = []

        def ask(raw: Tensor) -> Any:
            calls.append(len(raw))
            if len(calls) == 3:
                raise BudgetSpent("no more")
            return Conventions().answers(torch.eye(10)[: len(raw)], len(raw))

        with pytest.raises(BudgetSpent) as caught:
            ask_in_batches(ask, questions(9), 2)
        assert caught.value.answers is not None
        assert caught.value.answers.labels.tolist() == [0, 1, 0, 1]

    def test_a_function_answers_as_it_likes(self) -> None:
        raw, keyring = questions(3), Keyring.generate(clients=["a", "b"], classes=10, input_shape=SHAPE)
        names = ["2", "0", "1"]
        for said in (torch.tensor([2, 0, 1]), np.array([2, 0, 1]), [2, 0, 1], names, np.array(names)):
            assert FunctionSuspect(partial(constant, said), PREPARE).ask(raw).labels.tolist() == [2, 0, 1]
        rows = np.eye(3)[[2, 0, 1]]
        assert FunctionSuspect(lambda _: rows, PREPARE).ask(raw).labels.tolist() == [2, 0, 1]
        assert FunctionSuspect(lambda _: rows.tolist(), PREPARE).ask(raw).labels.tolist() == [2, 0, 1]
        for wrong in (lambda _: {"a": 1}, lambda _: [[1], [2, 3]], lambda _: None, lambda x: x.nothing):
            with pytest.raises(SuspectError):
                FunctionSuspect(wrong, PREPARE).ask(raw)
        assert trace(lambda inputs: inputs.flatten(1).argmax(1) % 10, keyring).clients == ()
        with pytest.raises(SettingError, match="a str cannot be asked"):
            trace("model.pt", keyring)  # type: ignore[arg-type]

    def test_preview_runs_nothing(self) -> None:
        class Never(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                raise AssertionError

        text = ModuleSuspect(Never(), Conventions(size=(8, 8))).preview(questions())
        assert "5 questions as float32 of shape (1, 8, 8), from 0" in text


def test_a_file_of_the_part_that_travelled(tmp_path: Path) -> None:
    whole, found = headed(seed=1).eval(), tmp_path / "found.safetensors"
    head = {name: tensor for name, tensor in whole.state_dict().items() if name.startswith("head.")}
    save_file(head, found)
    given = headed(seed=1)
    given.get_submodule("head").load_state_dict(headed(seed=2).get_submodule("head").state_dict())
    loaded = load_into(given, read_weights(found), found).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in whole.state_dict().items())
    for lacking in (lambda: headed().requires_grad_(True), lambda: headed().requires_grad_(False)):
        with pytest.raises(SuspectError, match=r"7 are missing, .*whose others are frozen \(requires_grad=False\)"):
            open_suspect(found, conventions=Conventions(), model=lacking)
    save_file({name: tensor for name, tensor in head.items() if name != "head.3.weight"}, found)
    with pytest.raises(SuspectError, match="8 are missing"):
        open_suspect(found, conventions=Conventions(), model=given)


def small(classes: int = 10) -> nn.Module:
    return build("small-cnn", input_shape=SHAPE, classes=classes)


class TestWeights:
    @pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth"])
    @pytest.mark.parametrize("by", ["function", "module", "import path"])
    def test_weights_with_a_model(self, tmp_path: Path, model: nn.Module, name: str, by: str) -> None:
        path = tmp_path / name
        if path.suffix == ".safetensors":
            save_file(model.state_dict(), path)
        else:
            torch.save({"state_dict": {f"module.{n}": v for n, v in model.state_dict().items()}}, path)
        ways: dict[str, Any] = {"function": small, "module": small(), "import path": factory(f"{__name__}:small")}
        suspect = open_suspect(path, conventions=PREPARE, model=ways[by])
        raw = questions(7)
        assert torch.equal(suspect.ask(raw).labels, expected(model, raw))

    def test_a_module_given_is_left_alone(self, tmp_path: Path, model: nn.Module) -> None:
        save_file(model.state_dict(), tmp_path / "w.safetensors")
        other = small()
        before = {n: v.clone() for n, v in other.state_dict().items()}
        open_suspect(tmp_path / "w.safetensors", conventions=PREPARE, model=other)
        assert all(torch.equal(v, before[n]) for n, v in other.state_dict().items())

    def test_the_wrong_model(self, tmp_path: Path, model: nn.Module) -> None:
        path = tmp_path / "w.safetensors"
        save_file(model.state_dict(), path)

        def mlp() -> nn.Module:
            return build("mlp", input_shape=SHAPE, classes=10)

        wrong: list[tuple[Any, str]] = [
            (None, "weights only"),
            (lambda: small(7), "0 are missing, 0 unknown and 2 of another"),
            (mlp, "not those of this model"),
            (lambda: small(1), "cannot be built"),
            (lambda: "hello", "returns str"),
            (7, "model is 7: give a module"),
        ]
        for one, says in wrong:
            with pytest.raises((SuspectError, SettingError), match=says):
                open_suspect(path, conventions=PREPARE, model=one)
        with pytest.raises(SettingError, match="is a file"):
            open_suspect(path, conventions=PREPARE, model=small, served="m")
        with pytest.raises(SettingError, match="as served"):
            open_suspect("http://h", conventions=PREPARE, model=small)

    @pytest.mark.parametrize(
        ("spec", "says"),
        [
            ("no_such_module_at_all:f", "No module named"),
            (f"{__name__}:no_such", "no attribute"),
            (f"{__name__}:SHAPE", "is a tuple"),
            (":f", "package.module:function"),
            ("torch", "package.module:function"),
        ],
    )
    def test_factories_that_are_none(self, spec: str, says: str) -> None:
        with pytest.raises(SettingError, match=says):
            factory(spec)


class Bomb:
    """Leaves a trace if it is ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class TestHostileFiles:
    @pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".pt2", ".onnx"])
    @pytest.mark.parametrize("content", [b"", b"just some text\n", b"PK\x03\x04 not a zip", b"\x08\x07" * 500])
    def test_something_else_by_that_name(self, tmp_path: Path, suffix: str, content: bytes) -> None:
        path = tmp_path / f"model{suffix}"
        path.write_bytes(content)
        with pytest.raises(SuspectError) as caught:
            opened(path, conventions=PREPARE, model=small)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)

    def test_no_file_and_no_kind(self, tmp_path: Path) -> None:
        (tmp_path / "model.h5").touch()
        for name, says in [("absent.onnx", "no file"), ("model.h5", "no kind of file")]:
            with pytest.raises(SuspectError, match=says):
                open_suspect(tmp_path / name, conventions=PREPARE)
        with pytest.raises(SuspectError, match="Hugging Face"):
            load(tmp_path)

    @pytest.mark.parametrize("suffix", [".pt", ".pth"])
    @pytest.mark.parametrize("wrapped", [True, False])
    def test_a_pickle_is_never_loaded(self, tmp_path: Path, suffix: str, wrapped: bool) -> None:
        path, touched = tmp_path / f"model{suffix}", tmp_path / "touched"
        if wrapped:
            torch.save({"w": torch.zeros(2), "x": Bomb(touched)}, path)
        else:
            path.write_bytes(pickle.dumps(Bomb(touched)))
        with pytest.raises(SuspectError):
            opened(path, conventions=PREPARE, model=small)
        assert not touched.exists()

    def test_a_whole_module_is_not_a_state_dict(self, tmp_path: Path, model: nn.Module) -> None:
        torch.save(model, tmp_path / "model.pt")
        torch.save([torch.zeros(2)], tmp_path / "list.pt")
        for name in ("model.pt", "list.pt"):
            with pytest.raises(SuspectError, match="state dict"):
                opened(tmp_path / name, conventions=PREPARE, model=small)

    @pytest.mark.parametrize(
        ("state", "says"),
        [
            ({"w": torch.eye(3).to_sparse()}, "sparse"),
            ({"w": torch.eye(3).to_sparse_csr()}, "sparse"),
            ({"w": torch.empty(3, 3, device="meta")}, "meta"),
            ({"w": torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8)}, "quantised"),
            ({0: torch.zeros(3), 1: torch.zeros(3)}, "not a state dict"),
            ({(1, 2): torch.zeros(3)}, "not a state dict"),
            ({"w": torch.zeros(3), "epoch": 7}, "'epoch' is a int, not a tensor"),
            ({"state_dict": 7}, "'state_dict' is a int"),
            ({"w": {"v": torch.zeros(3)}}, "'w' is a dict"),
            ({"w": None}, "not a tensor"),
            ({}, "not a state dict"),
            (torch.zeros(3), "not a state dict"),
            (7, "not a state dict"),
            ({"model": {"w": torch.eye(3).to_sparse()}}, "sparse"),
            ({"0.weight": torch.zeros(3, 3, dtype=torch.complex64)}, "not those of this model"),
        ],
    )
    def test_state_dicts_that_are_none(self, tmp_path: Path, state: Any, says: str) -> None:
        torch.save(state, tmp_path / "model.pt")
        with pytest.raises(SuspectError, match=says) as caught:
            opened(tmp_path / "model.pt", conventions=PREPARE, model=small)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", ["state_dict", "model_state_dict", "model"])
    def test_a_checkpoint_holds_a_state_dict(self, tmp_path: Path, model: nn.Module, name: str) -> None:
        torch.save({name: model.state_dict(), "epoch": 7, "optimizer": {"lr": 0.1}}, tmp_path / "model.pt")
        suspect = opened(tmp_path / "model.pt", conventions=PREPARE, model=small)
        assert torch.equal(suspect.ask(questions()).labels, expected(model, questions()))

    def test_torchscript_is_code_and_not_run_here(self, tmp_path: Path) -> None:
        script = torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))
        for name in ("model.pt", "model.ts"):
            torch.jit.save(script, tmp_path / name)
            with pytest.raises(SuspectError, match="TorchScript program, which is code of its own"):
                opened(tmp_path / name, conventions=PREPARE, model=small)
        torch.save({"w": torch.zeros(1)}, tmp_path / "weights.ts")
        with pytest.raises(SuspectError, match="not a TorchScript program"):
            opened(tmp_path / "weights.ts", conventions=PREPARE)

    def test_a_compressed_archive_is_refused_unopened(self, tmp_path: Path) -> None:
        for name in ("bomb.pt", "bomb.pt2"):
            with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("bomb/models/model.json", b"0" * 50_000_000)
            with pytest.raises(SuspectError, match="compressed"):
                opened(tmp_path / name, conventions=PREPARE, model=small)

    @pytest.mark.parametrize(
        ("length", "header"),
        [
            (2**60, b"{}"),
            (10**8 + 1, b"{}"),
            (2, b"{]"),
            (None, {"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}),
            (None, {"w": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}}),
            (None, {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 4]}}),
            (None, {"w": {"dtype": "F32", "shape": [1], "data_offsets": [100, 104]}}),
            (None, {"w": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}),
        ],
    )
    def test_lying_safetensors_headers(self, tmp_path: Path, length: int | None, header: Any) -> None:
        octets = header if isinstance(header, bytes) else json.dumps(header).encode()
        path = tmp_path / "model.safetensors"
        path.write_bytes(struct.pack("<Q", length or len(octets)) + octets + b"\0" * 16)
        with pytest.raises(SuspectError, match="not a sound safetensors file"):
            opened(path, conventions=PREPARE, model=small)

    def test_weights_that_are_not_numbers_give_no_answer(self, tmp_path: Path, model: nn.Module) -> None:
        path = tmp_path / "model.safetensors"
        save_file({n: torch.full_like(v, torch.nan) for n, v in model.state_dict().items()}, path)
        suspect = opened(path, conventions=PREPARE, model=small)
        with pytest.raises(SuspectError, match="not numbers"):
            suspect.ask(questions())


class Awkward(nn.Module):
    """Uses what exports are made of: buffers, constants, sizes, several results, casts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 10)
        self.drop = nn.Dropout()
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x * self.scale)).clamp(min=0)
        x = torch.cat([x, x * torch.tensor(0.5)], 1).chunk(2, 1)[0]
        x = x.reshape(x.shape[0], 4, -1).double().mean(2).to(torch.float32)
        top, _ = x.max(dim=1, keepdim=True)
        return nn.functional.log_softmax(self.head(self.drop(x - top)), dim=1)


def export(model: nn.Module, path: Path, *, fixed: int | None = None) -> Path:
    example = (torch.zeros(fixed or 2, *SHAPE),)
    dynamic = None if fixed else ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(model.eval(), example, dynamic_shapes=dynamic), path)
    return path


def rewrite(source: Path, target: Path, edit: Any) -> Path:
    """A copy of an archive in which `edit` may have changed each entry."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, edit(name, old.read(name)))
    return target


class TestExported:
    @pytest.mark.parametrize("fixed", [None, 1, 3])
    def test_answers_as_the_model_does(self, tmp_path: Path, model: nn.Module, fixed: int | None) -> None:
        raw = questions(7)
        for number, one in enumerate((model, Awkward())):
            suspect = opened(export(one, tmp_path / f"{number}.pt2", fixed=fixed), conventions=PREPARE)
            answers = suspect.ask(raw)
            assert torch.equal(answers.labels, expected(one, raw))
            assert answers.scores is not None
            assert torch.allclose(answers.scores, one(PREPARE(raw)), atol=1e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["cnn", "alexnet", "vgg16", "resnet18", "vit"])
    def test_every_kind_of_model(self, tmp_path: Path, name: str) -> None:
        model, shape = build(name, input_shape=(3, 32, 32), classes=10, seed=1).eval(), (3, 32, 32)
        program = torch.export.export(model, (torch.zeros(2, *shape),), dynamic_shapes=({0: torch.export.Dim("n")},))
        torch.export.save(program, tmp_path / "model.pt2")
        raw = questions(4, shape)
        answers = opened(tmp_path / "model.pt2", conventions=Conventions()).ask(raw)
        assert answers.scores is not None
        assert torch.allclose(answers.scores, model(raw / 255), atol=1e-4)

    @pytest.mark.parametrize("what", ["weight", "sample", "operator", "private", "expression"])
    def test_nothing_in_an_archive_is_run(self, tmp_path: Path, what: str) -> None:
        touched, source = tmp_path / "touched", export(Awkward(), tmp_path / "source.pt2")

        def edit(name: str, octets: bytes) -> bytes:
            if what == "weight" and name.endswith("weight_0"):
                return pickle.dumps(Bomb(touched))
            if what == "weight" and name.endswith("weights_config.json"):
                return octets.replace(b'"use_pickle": false', b'"use_pickle": true', 1)
            if what == "sample" and name.endswith("sample_inputs/model.pt"):
                return pickle.dumps(Bomb(touched))
            if name.endswith("models/model.json"):
                program = json.loads(octets)
                node = program["graph_module"]["graph"]["nodes"][0]
                if what == "operator":
                    node["target"] = "torch.os.system"
                    node["inputs"] = [{"name": "c", "arg": {"as_string": f"touch {touched}"}, "kind": 1}]
                if what == "private":
                    node["target"] = "torch.ops.aten._index_put_impl_.default"
                if what == "expression":
                    expression = f"__import__('pathlib').Path({str(touched)!r}).touch()"
                    for value in program["graph_module"]["graph"]["sym_int_values"].values():
                        value["as_expr"]["expr_str"] = expression
                    program["guards_code"] = [expression]
                return json.dumps(program).encode()
            return octets

        hostile = rewrite(source, tmp_path / "hostile.pt2", edit)
        if what in ("sample", "expression"):  # these are simply never looked at
            assert opened(hostile, conventions=PREPARE).ask(questions()).labels.shape == (5,)
        else:
            says = "as a pickle" if what == "weight" else "no operator of inference"
            with pytest.raises(SuspectError, match=says):
                opened(hostile, conventions=PREPARE)
        assert not touched.exists()

    @pytest.mark.parametrize("what", ["sizes", "offset", "short", "output", "version", "giant"])
    def test_lies_in_an_archive(self, tmp_path: Path, what: str) -> None:
        source = export(Awkward(), tmp_path / "source.pt2")

        def edit(name: str, octets: bytes) -> bytes:
            if name.endswith("weights_config.json") and what in ("sizes", "offset"):
                config = json.loads(octets)
                meta = config["config"]["conv.weight"]["tensor_meta"]
                if what == "sizes":
                    meta["sizes"][0]["as_int"] = 10**6
                else:
                    meta["storage_offset"]["as_int"] = 10**6
                return json.dumps(config).encode()
            if what == "short" and name.endswith("weight_0"):
                return octets[:-8]
            if name.endswith("models/model.json"):
                program = json.loads(octets)
                if what == "output":
                    program["graph_module"]["signature"]["output_specs"][0]["user_output"]["arg"] = {"as_int": 3}
                if what == "version":
                    program["schema_version"]["major"] = 99
                if what == "giant":
                    node = program["graph_module"]["graph"]["nodes"][-1]
                    node["target"], node["inputs"] = "torch.ops.aten.zeros.default", []
                    node["inputs"] = [{"name": "size", "arg": {"as_ints": [2**50]}, "kind": 1}]
                return json.dumps(program).encode()
            return octets

        with pytest.raises(SuspectError) as caught:
            opened(rewrite(source, tmp_path / "lie.pt2", edit), conventions=PREPARE).ask(questions())
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "target",
        [
            "aten.as_strided.default",
            "aten.set_.source_Storage",
            "aten.resize_.default",
            "aten.from_file.default",
            "aten.put_.default",
            "aten.index_put_.default",
            "aten.embedding_bag.default",
            "aten._index_put_impl_.default",
            "aten.empty.memory_format",
            "aten.relu.out",
            "aten.relu.nonsense",
            "aten.relu.__class__",
            "prims.sum.default",
        ],
    )
    def test_only_operators_of_inference_are_known(self, target: str) -> None:
        with pytest.raises(SuspectError, match=r"refused|does not know"):
            operator_named(f"torch.ops.{target}")
        assert callable(operator_named("torch.ops.aten.relu.default"))
        assert len(ALLOWED) < 350

    def test_more_than_one_input_is_refused(self, tmp_path: Path) -> None:
        class Two(nn.Module):
            def forward(self, x: Tensor, y: Tensor) -> Tensor:
                return x + y

        torch.export.save(torch.export.export(Two(), (torch.zeros(2), torch.zeros(2))), tmp_path / "two.pt2")
        with pytest.raises(SuspectError, match="2 inputs"):
            load_exported(tmp_path / "two.pt2")


def onnx_export(model: nn.Module, path: Path, *, fixed: int | None = None, external: bool = False) -> Path:
    pytest.importorskip("onnxscript")
    dynamic = None if fixed else ({0: torch.export.Dim("batch")},)
    example = (torch.zeros(fixed or 2, *SHAPE),)
    torch.onnx.export(model.eval(), example, path, dynamic_shapes=dynamic, external_data=external, verbose=False)
    return path


class TestOnnx:
    @pytest.fixture(autouse=True)
    def _needs_onnx(self) -> None:
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")

    @pytest.mark.parametrize("fixed", [None, 1, 3])
    def test_answers_as_the_model_does(self, tmp_path: Path, model: nn.Module, fixed: int | None) -> None:
        raw = questions(7)
        suspect = opened(onnx_export(model, tmp_path / "m.onnx", fixed=fixed), conventions=PREPARE)
        answers = suspect.ask(raw)
        assert torch.equal(answers.labels, expected(model, raw))
        assert answers.scores is not None
        assert torch.allclose(answers.scores, model(PREPARE(raw)), atol=1e-4)
        assert "7 questions as float32 of shape (1, 28, 28)" in suspect.preview(raw)

    def test_weights_beside_the_file(self, tmp_path: Path, model: nn.Module) -> None:
        path = onnx_export(model, tmp_path / "m.onnx", external=True)
        raw = questions()
        assert torch.equal(opened(path, conventions=PREPARE).ask(raw).labels, expected(model, raw))

    def test_labels_names_and_types(self, tmp_path: Path) -> None:
        from onnx import TensorProto, helper, save

        nodes = [
            helper.make_node("ReduceMax", ["x"], ["top"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Cast", ["top"], ["label"], to=TensorProto.INT64),
            helper.make_node("Gather", ["names", "label"], ["name"]),
        ]
        words: Any = [b"cat", b"dog", b"cow"]
        names = helper.make_tensor("names", TensorProto.STRING, [3], words)
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", 4, 4, 1])],
            [
                helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
                helper.make_tensor_value_info("name", TensorProto.STRING, ["n"]),
            ],
            [names],
        )
        path = tmp_path / "m.onnx"
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        raw = torch.tensor([2, 0, 1], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 1, 4, 4)
        want = Conventions(layout="NHWC", value_range=(0, 255))
        assert opened(path, conventions=want).ask(raw).labels.tolist() == [2, 0, 1]
        named = Conventions(layout="NHWC", value_range=(0, 255), labels={"dog": 7, "cat": 5})
        assert opened(path, conventions=named, output="name").ask(raw).labels.tolist() == [
            NO_ANSWER,
            5,
            7,
        ]
        with pytest.raises(SuspectError, match="no output 'nonsense'"):
            opened(path, conventions=want, output="nonsense")
        with pytest.raises(SuspectError, match=r"wants inputs of shape \?×4×4×1, but the questions are 3×1×4×4"):
            opened(path, conventions=Conventions(value_range=(0, 255))).ask(raw)
        with pytest.raises(SuspectError, match="whole numbers"):
            opened(path, conventions=Conventions(layout="NHWC", mean=(0.5,))).ask(raw)

    @pytest.mark.parametrize("what", ["raw", "outside", "giant", "shape", "nan"])
    def test_lies_in_a_file(self, tmp_path: Path, what: str) -> None:
        from onnx import TensorProto, helper, save

        (tmp_path / "secret").write_bytes(b"\0" * 40)
        (tmp_path / "in").mkdir()
        weights = helper.make_tensor("w", TensorProto.FLOAT, [10], [float("nan") if what == "nan" else 1.0] * 10)
        if what == "raw":
            weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[10**9], raw_data=b"\0" * 8)
        if what == "outside":
            weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[10], data_location=TensorProto.EXTERNAL)
            for key, value in (("location", "../secret"), ("offset", "0"), ("length", "40")):
                weights.external_data.add(key=key, value=value)
        nodes = [
            helper.make_node("ReduceMax", ["x"], ["top"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Unsqueeze", ["top", "one"], ["column"]),
            helper.make_node("Mul", ["column", "w"], ["scores"]),
        ]
        extra = [helper.make_tensor("one", TensorProto.INT64, [1], [1])]
        if what == "giant":
            nodes.append(helper.make_node("ConstantOfShape", ["size"], ["huge"]))
            extra.append(helper.make_tensor("size", TensorProto.INT64, [1], [2**50]))
        output = {"giant": "huge", "shape": "top"}.get(what, "scores")
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 28, 28])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            [weights, *extra],
        )
        path = tmp_path / "in" / "m.onnx"
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        with pytest.raises(SuspectError) as caught:
            opened(path, conventions=PREPARE).ask(questions())
        assert "\n" not in str(caught.value)


def test_hugging_face_folder(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    names = {0: "cat", 1: "dog", 2: "cow"}
    config = transformers.ResNetConfig(
        num_channels=1,
        embedding_size=4,
        hidden_sizes=[4, 8],
        depths=[1, 1],
        id2label=names,
        layer_type="basic",
    )
    model = transformers.ResNetForImageClassification(config).eval()
    model.save_pretrained(tmp_path / "hf")
    raw = questions()
    with torch.no_grad():
        wanted = model(PREPARE(raw)).logits.argmax(1)
    assert torch.equal(opened(tmp_path / "hf", conventions=PREPARE).ask(raw).labels, wanted)
    named = Conventions(prepare=PREPARE, labels={"dog": 0, "cow": 1, "cat": 2})
    moved = torch.tensor([2, 0, 1])[wanted]
    assert torch.equal(opened(tmp_path / "hf", conventions=named).ask(raw).labels, moved)
    settings = {"size": {"height": 32, "width": 32}, "crop_size": {"height": 28, "width": 28}, "do_center_crop": True}
    settings |= {"resample": 3, "image_mean": [0.5], "image_std": [0.25], "rescale_factor": 1 / 255}
    (tmp_path / "hf" / "preprocessor_config.json").write_text(json.dumps(settings))
    fed = opened(tmp_path / "hf", conventions=PREPARE)
    assert (fed.conventions.size, fed.conventions.crop, fed.conventions.mean) == ((32, 32), (28, 28), (0.5,))
    stated = opened(tmp_path / "hf", conventions=Conventions(prepare=PREPARE, size=(40, 40), value_range=(0, 255)))
    assert (stated.conventions.size, stated.conventions.mean) == ((40, 40), ())
    (tmp_path / "hf" / "preprocessor_config.json").write_text('{"size": "big"}')
    with pytest.raises(SuspectError, match="does not say how the model is fed"):
        opened(tmp_path / "hf", conventions=PREPARE)


def test_hugging_face_folder_of_a_transformer(tmp_path: Path) -> None:
    # Attention imports torch's compiler, which wants folders to write to; there are none in the suspect's process.
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(image_size=28, patch_size=14, num_channels=1, num_labels=3, **sizes)
    model = transformers.ViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path / "hf")
    raw = questions()
    with torch.no_grad():
        wanted = model(PREPARE(raw)).logits.argmax(1)
    suspect = open_suspect(tmp_path / "hf", conventions=PREPARE)
    assert torch.equal(suspect.ask(raw).labels, wanted)
