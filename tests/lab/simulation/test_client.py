"""Local training: it learns, it is repeatable, and it leaves everything else as it was."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.lab.data import Dataset
from tramark.lab.models import build
from tramark.lab.simulation.client import LocalTraining, accuracy, crop_and_flip, predict


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def halves(number: int = 200, channels: int = 1) -> Dataset:
    """Noisy images that are brighter at the top (0) or at the bottom (1)."""
    labels = torch.arange(number) % 2
    images = torch.randint(0, 120, (number, channels, 8, 8), generator=seeded(0), dtype=torch.uint8)
    images[labels == 0, :, :4] += 100
    images[labels == 1, :, 4:] += 100
    return Dataset("halves", images, labels, images, labels, classes=2)


def vector(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def model(channels: int = 1) -> nn.Module:
    return build("cnn", input_shape=(channels, 8, 8), classes=2, seed=0)


def test_training_learns() -> None:
    data, net = halves(), model()
    train = LocalTraining(epochs=3)
    first = train(net, data, torch.arange(150), generator=seeded(0))
    later = train(net, data, torch.arange(150), generator=seeded(1))
    assert later < first
    assert accuracy(net, data.test_inputs[150:], data.test_labels[150:], prepare=data.prepare) > 0.9


def test_training_equals_a_plain_loop() -> None:
    data, net, plain = halves(128), model(), model()
    LocalTraining(epochs=1, batch_size=128)(net, data, torch.arange(128), generator=seeded(0))
    # One full batch: its order does not matter.
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    F.cross_entropy(plain(data.prepare(data.train_inputs)), data.train_labels).backward()
    optimiser.step()
    torch.testing.assert_close(vector(net), vector(plain), atol=1e-6, rtol=1e-4)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Dropout(), model(channels=3))


def test_the_generator_decides_everything_dropout_and_crops_included() -> None:
    data = replace(halves(16, channels=3), augment=True)
    train = LocalTraining(epochs=1, batch_size=8)

    def trained(seed: int) -> Tensor:
        net = dropping()
        torch.manual_seed(seed + 100)
        train(net, data, torch.arange(16), generator=seeded(seed // 2))
        return vector(net)

    first, same_generator, other = (trained(seed) for seed in (0, 1, 2))
    assert torch.equal(first, same_generator)
    assert not torch.equal(first, other)


def test_torch_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    LocalTraining(epochs=1)(dropping(), halves(8, channels=3), torch.arange(8), generator=seeded(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_stay_in_their_own_storage_and_layout() -> None:
    net = model()
    flat = vector(net)
    views = flat.split([weight.numel() for weight in net.parameters()])
    for weight, view in zip(net.parameters(), views, strict=True):
        weight.data = view.view_as(weight)
    before = flat.clone()
    LocalTraining(epochs=1)(net, halves(), torch.arange(64), generator=seeded(0))
    assert not torch.equal(flat, before)
    assert torch.equal(flat, vector(net))
    assert all(weight.is_contiguous() for weight in net.parameters())


class Counter(nn.Module):
    """Notes the size of each batch that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 2)
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("samples", "drop_last", "sizes"),
    [(20, True, [8, 8]), (20, False, [8, 8, 4]), (16, True, [8, 8]), (5, True, [5])],
)
def test_a_last_batch_is_dropped_unless_it_is_the_only_one(samples: int, drop_last: bool, sizes: list[int]) -> None:
    net = Counter()
    train = LocalTraining(epochs=1, batch_size=8, drop_last=drop_last)
    train(net, halves(), torch.arange(samples), generator=seeded(0))
    assert net.sizes == sizes


def test_only_the_clients_own_samples_are_seen() -> None:
    data, net, blank = halves(), model(), model()
    blanked = data.train_inputs.clone()
    blanked[50:] = 0
    train = LocalTraining(epochs=1, batch_size=10)
    train(net, data, torch.arange(50), generator=seeded(0))
    train(blank, replace(data, train_inputs=blanked), torch.arange(50), generator=seeded(0))
    assert torch.equal(vector(net), vector(blank))


def test_crops_are_windows_of_the_padded_image_mirrored_or_not() -> None:
    images = torch.randint(1, 256, (40, 3, 6, 6), generator=seeded(0)).byte()
    changed = crop_and_flip(images, generator=seeded(1))
    padded = F.pad(images, (4, 4, 4, 4))
    seen = set()
    for image, source in zip(changed, padded, strict=True):
        matches = [
            (down, right, mirrored)
            for down in range(9)
            for right in range(9)
            for mirrored in (False, True)
            if torch.equal(image.flip(-1) if mirrored else image, source[:, down : down + 6, right : right + 6])
        ]
        assert matches
        seen.add(matches[0])
    assert len(seen) > 25
    assert {mirrored for *_, mirrored in seen} == {False, True}


def test_predict_restores_the_mode_of_every_module() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4))
    net[2].eval()
    x = torch.randn(10, 4, generator=seeded(0))
    logits = predict(net, x, batch_size=3)
    assert [module.training for module in net.modules()] == [True, True, True, False]
    assert not logits.requires_grad
    torch.testing.assert_close(logits, predict(net, x))


def test_what_cannot_be_is_refused() -> None:
    data, net = halves(), model()
    with pytest.raises(ValueError, match="indices is empty"):
        LocalTraining()(net, data, torch.arange(0), generator=seeded(0))
    with pytest.raises(ValueError, match="at least 1"):
        LocalTraining(epochs=0)
    with pytest.raises(ValueError, match="3 inputs but 2 labels"):
        accuracy(net, data.test_inputs[:3], data.test_labels[:2], prepare=data.prepare)
    with pytest.raises(ValueError, match="no inputs"):
        predict(net, data.test_inputs[:0], prepare=data.prepare)
