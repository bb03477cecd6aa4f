"""MFL-Owner: matrices that are almost orthogonal, tell clients apart by embeddings, and are trained by no client."""

import copy

import pytest
import torch
from federations import CLIENTS, digits, issued, scene, with_state
from nets import mlp
from torch import nn
from torch.nn import functional as F

from tramark.errors import SettingError, SuspectError
from tramark.keys.sources import Vectors
from tramark.lab.methods.mfl_owner import LENGTH, MFLOwner, TwoTowers
from tramark.lab.simulation.client import LocalTraining
from tramark.vault.packing import pack, unpack


def made() -> MFLOwner:
    """A server after a round in which nobody trained."""
    server = MFLOwner.make(mlp(), scene(epochs=60, triggers=32, size=32))
    server.collect(dict(server.dispatch()))
    return server


def test_clients_are_told_apart_by_the_embeddings_of_their_triggers() -> None:
    server = made()
    assert server.measure()["vr"] == 1.0
    for row, client in enumerate(CLIENTS):
        model = issued(server, client)
        assert isinstance(model, TwoTowers)
        assert server.verify(model).accused == (client,)
        pictures, words = server._pairs[row]
        base = with_state(server, server.fleet.state())
        assert isinstance(base, TwoTowers)
        nearness = []
        with torch.no_grad():
            for one in (base, model):
                pair = one.of_pictures(server.scene.source.prepare(pictures)), one.of_texts(words)
                nearness.append(
                    (float(F.cosine_similarity(*pair).mean()), float((pair[0] - pair[1]).norm(dim=1).mean()))
                )
        (cosine, distance), (nearer, shorter) = nearness
        wanted = 0.5 * (nearer - cosine + 2) / 4 + 0.5 * (distance - shorter + 2) / 4
        assert server.score(model, client) == pytest.approx(wanted, abs=1e-4)
        assert server.score(base, client) == pytest.approx(0.5, abs=1e-6)


def test_matrices_are_almost_orthogonal_and_hardly_felt() -> None:
    server = made()
    assert 0 < server.measure()["orthogonality"] < 0.5
    inputs = digits().prepare(digits().test_inputs)
    with torch.no_grad():
        base = with_state(server, server.fleet.state())(inputs).argmax(1)
        own = issued(server, "bob")(inputs).argmax(1)
    assert float((base == own).float().mean()) > 0.8


def test_clients_train_the_towers_and_not_the_matrix() -> None:
    server = made()
    model = issued(server, "alice")
    before = copy.deepcopy(model.state_dict())
    training = LocalTraining(epochs=1, batch_size=32)
    training(model, digits(), torch.arange(200), generator=torch.Generator().manual_seed(0))
    after = model.state_dict()
    assert torch.equal(after["mark"], before["mark"])
    assert not torch.equal(after["text.0.weight"], before["text.0.weight"])


def test_its_state_is_all_that_it_needs() -> None:
    server, other = made(), MFLOwner.make(mlp(), scene(epochs=60, triggers=32, size=32))
    other.load_state_dict(unpack(pack(server.state_dict())))
    for client in CLIENTS:
        one, two = server.fleet.state(client), other.fleet.state(client)
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_what_has_no_embeddings_cannot_be_verified_or_marked() -> None:
    server = made()
    with pytest.raises(SuspectError, match="module with both towers"):
        server.verify(mlp())
    with pytest.raises(SettingError, match="pictures"):
        MFLOwner.make(mlp(), scene(Vectors(64)))
    with pytest.raises(SettingError, match="must be positive"):
        MFLOwner.make(mlp(), scene(epochs=0))
    with pytest.raises(SettingError, match="no linear layer"):
        TwoTowers(nn.Conv2d(1, 1, 3), ["a"], 4, 0)


def test_descriptions_of_any_number_of_classes_are_texts_of_known_words() -> None:
    towers = TwoTowers(mlp(), [f"a picture of kind {i}" for i in range(30)], 16, 0)
    assert towers.words.shape == (30, LENGTH)
    assert len({tuple(row) for row in towers.words.tolist()}) == 30
    assert int(towers.words.max()) == towers.known
