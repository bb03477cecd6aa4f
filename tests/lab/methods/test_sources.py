"""Baselines by their own code's parameters, and as the paper's Table 1 has them."""

import copy
import math
from typing import Any

import pytest
import torch
from federations import CLIENTS, SECRET, digits
from nets import mlp
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.fleet.layout import Layout
from tramark.fleet.scratch import loaded
from tramark.keys.pictures import LabelledImages, Patterns
from tramark.keys.sources import Source
from tramark.lab.methods import Scene
from tramark.lab.methods.bits import BitKey
from tramark.lab.methods.fedipr import FedIPR
from tramark.lab.methods.fedtracker import FedTracker
from tramark.lab.methods.fingerprints import Carrier, Fingerprints
from tramark.lab.methods.robwe import RobWE
from tramark.lab.methods.taught import Rehearsal
from tramark.lab.methods.waffle import Waffle
from tramark.lab.models import build
from tramark.lab.simulation.client import LocalTraining, Practice


def scene(origin: str, *, questions: Source | None = None, classes: int = 10, **options: Any) -> Scene:
    """Three clients with the digits as triggers, and parameters of some origin."""
    data = digits()
    images = LabelledImages(data.train_inputs, data.train_labels, (1, 8, 8), name="digits", per_question=100)
    return Scene(CLIENTS, classes, questions or images, SECRET, options={"source": origin} | options)


def net(classes: int = 10) -> nn.Module:
    return build("cnn", input_shape=(1, 8, 8), classes=classes, seed=0)


def test_rehearsal_with_summed_gradients_is_a_plain_loop() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Dropout(), nn.Linear(20, 4))
    plain, taught = copy.deepcopy(model), copy.deepcopy(model)
    inputs, labels = torch.randn(70, 12), torch.randint(4, (70,))
    rehearsal = Rehearsal(1e-3, batch_size=32, least=3, passes=3, live=True, summed=True)
    assert rehearsal(taught, inputs, labels, generator=torch.Generator().manual_seed(1)) == 3
    random = torch.Generator().manual_seed(1)
    optimiser = torch.optim.SGD(plain.parameters(), lr=1e-3)
    plain.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=random)))
        for _ in range(3):
            order = torch.randperm(70, generator=random)
            for batch in (order[:32], order[32:64], order[64:]):
                F.cross_entropy(plain(inputs[batch]), labels[batch]).backward()
                optimiser.step()
    for one, other in zip(plain.parameters(), taught.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_table_1s_waffle_is_taught_the_images_own_labels() -> None:
    server = Waffle.make(net(), scene("table1", triggers=100))
    before = server.fleet.base.clone()
    assert (server.questions.labels.bincount() == 10).all()
    data = digits()
    own = data.train_inputs[data.train_labels == 3].flatten(1)
    taught = server.questions.trained[30:40].flatten(1)
    assert all((own == image).all(1).any() for image in taught)
    assert len(server.questions.held_out) == 100
    assert server.retraining == Rehearsal(1e-5, batch_size=32, least=20, passes=20, live=True, summed=True)
    server.collect(dict(server.dispatch()))
    assert 0 < float((server.fleet.base - before).abs().max()) < 0.1
    # With more classes than digits there are still ten questions, each with its digit for an answer.
    hundred = Waffle.make(net(100), scene("table1", classes=100, triggers=100))
    assert (hundred.questions.count, hundred.retraining.rate) == (10, 1e-6)
    with pytest.raises(SettingError, match="--triggers mnist"):
        Waffle.make(net(), scene("table1", questions=Patterns((1, 8, 8))))


@pytest.mark.parametrize(("channels", "rate"), [(1, 0.1), (3, 5e-4)])
def test_the_original_waffle_neither_doubles_nor_clips(channels: int, rate: float) -> None:
    model = build("cnn", input_shape=(channels, 8, 8), classes=10, seed=0)
    questions = Patterns((channels, 8, 8))
    server = Waffle.make(model, scene("original", questions=questions, epochs=1, passes=1))
    assert (server.retraining.clip, server.retraining.doubling, server.retraining.rate) == (math.inf, math.inf, rate)


@pytest.mark.parametrize("method", [Waffle, FedTracker, FedIPR, RobWE])
def test_an_unknown_source_is_refused(method: Any) -> None:
    with pytest.raises(SettingError, match="no source 'x' of parameters"):
        method.make(net(), scene("x"))


def test_rows_of_a_layer_carry_a_number_for_each_output() -> None:
    model = mlp()
    layout = Layout.of(model)
    linear = next(name for name, module in model.named_modules() if isinstance(module, nn.Linear))
    carrier = Carrier.of_layer(layout, linear)
    weight = model.get_parameter(f"{linear}.weight").detach()
    torch.testing.assert_close(carrier.read([weight]), weight.mean(1))
    change = torch.randn(2, len(weight))
    moved = (weight.flatten() + carrier.spread(change))[1].view_as(weight)
    torch.testing.assert_close(carrier.read([moved]), weight.mean(1) + change[1], atol=1e-5, rtol=1e-5)
    with pytest.raises(SettingError, match="no layer"):
        Carrier.of_layer(layout, "nonesuch")


def test_steps_that_are_not_shortened_are_as_long_as_their_rate() -> None:
    prints = Fingerprints.make(SECRET, ["a"], torch.ones(1, 16), 40, 0.5)
    change = prints.press(torch.zeros(40), rate=5e-4, steps=1, similarity=0.85, shortened=False)
    torch.testing.assert_close(change[0], 5e-4 * prints.keys[0].sum(0))


def test_table_1s_fedtracker_has_fingerprints_and_no_watermark() -> None:
    server = FedTracker.make(net(), scene("table1", bits=32))
    assert (server.carrier.names, server.carrier.size) == (("fc1.weight",), 512)
    assert (server.fingerprint_rate, server.steps, server.shortened) == (5e-4, 6, False)
    before = server.fleet.base.clone()
    server.collect(dict(server.dispatch()))
    assert torch.allclose(server.fleet.base, before, atol=1e-6), "nothing is taught"
    assert set(server.measure()) >= {"vr", "vr_owned"}
    with loaded(server.model, server.fleet, server.fleet.weights("bob")) as model:
        finding = server.verify(model)
    assert finding.queries == 0
    assert len(finding.accused) == 1
    hundred = FedTracker.make(net(100), scene("table1", classes=100))
    assert hundred.fingerprints.bits.shape[1] == 4


def test_vr_is_the_fingerprints_arg_max_whether_claimed_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FedTracker.make(net(), scene("ours", bits=32, passes=1))
    server.collect(dict(server.dispatch()))
    monkeypatch.setattr(type(server.questions), "claim", lambda *_: False)
    found = server.measure()
    assert (found["vr"], found["vr_owned"]) == (1.0, 0.0)


def test_fedipr_reads_each_of_three_layers_through_a_matrix_of_its_own() -> None:
    model = build("alexnet-bn", input_shape=(1, 8, 8), classes=10, seed=0)
    method = FedIPR.make(model, scene("original"))
    assert method.carrier.names == ("norm3.weight", "norm4.weight", "norm5.weight")
    assert method.bits == 39
    key = BitKey.draw_apart(SECRET, "x", sizes=[384, 256, 256], bits=40)
    inside = torch.zeros(896, 39, dtype=torch.bool)
    inside[:384, :17] = inside[384:640, 17:28] = inside[640:, 28:] = True
    assert (key.matrix[inside] != 0).all()
    assert not key.matrix[~inside].any()


def test_robwes_private_marks_are_in_the_norms_scales() -> None:
    model = build("cnn-bn", input_shape=(1, 8, 8), classes=10, seed=0)
    method = RobWE.make(model, scene("original", head_epochs=1, representation_epochs=1))
    assert [name for name, _ in method._carrier.parts] == ["norm1.weight", "norm2.weight"]
    own: dict[str, Tensor] = {}
    incoming = {}
    for i, (client, state) in enumerate(method.dispatch().items()):
        model.load_state_dict(state)
        indices = torch.arange(100 * i, 100 * i + 100)
        training = LocalTraining(epochs=2, batch_size=16)
        method.train_client(client, model, Practice(training, digits(), indices, torch.Generator().manual_seed(i)))
        incoming[client] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        own[client] = incoming[client]["norm1.weight"]
    report = method.collect(incoming)
    for client, state in method.dispatch(report.used).items():
        assert torch.allclose(state["norm1.weight"], own[client], atol=1e-6), "scales are never averaged"
    assert not torch.allclose(own["alice"], own["bob"], atol=1e-6)
    with pytest.raises(SettingError, match="no norm layers"):
        RobWE.make(net(), scene("original"))
