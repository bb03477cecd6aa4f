"""Embeddings are linear layers of one-hot rows, and bear marks as those do."""

from collections.abc import Callable, Iterator

import pytest
import torch
from nets import Attending, Reading, drawing, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from tramark import Keyring, TraMark, trace
from tramark.errors import SettingError
from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.fleet.layout import Layout
from tramark.fleet.moments import DenseMoment
from tramark.fleet.region import Directions, Subspace, load_region
from tramark.keys.sources import Tokens
from tramark.lab.models import build
from tramark.marks.closed_form import ClosedForm
from tramark.marks.directions import fewer_positions, write_directions
from tramark.marks.layers import OneHot, editable_layers, rows_fed
from tramark.marks.runs import GraphRun, WholeRun
from tramark.marks.split import cut, split

CLIENTS = ["a", "b", "c"]
IDS = torch.randint(1, 300, (6, 12), generator=drawing())


def ring(**options: int) -> Keyring:
    given = {"questions": 8, "pool": 64} | options
    return Keyring.generate(clients=CLIENTS, classes=4, source=Tokens(12, 300), secret=b"s" * 32, **given)  # type: ignore[arg-type]


def dense(rows: OneHot) -> Tensor:
    return F.one_hot(rows.ids, rows.width).float()


def test_an_embedding_is_its_matrix() -> None:
    layer = nn.Embedding(300, 16)
    rows, slot = rows_fed(layer, IDS), Layout.of(nn.Sequential(layer)).slots["0.weight"]
    matrix = slot.matrix(layer.weight.detach())
    assert slot.sides == tuple(matrix.shape) == (16, 300)
    assert isinstance(rows, OneHot)
    torch.testing.assert_close(rows @ matrix.T, layer(IDS).detach())
    torch.testing.assert_close(rows @ matrix.T, dense(rows) @ matrix.T)


@pytest.mark.parametrize("count", [1, 3, 12, 50])
def test_averaged_rows_are_histograms(count: int) -> None:
    rows = OneHot(IDS, 300)
    torch.testing.assert_close(fewer_positions(rows, count), fewer_positions(dense(rows), count))
    some = int(IDS[0, 0])
    without = OneHot(IDS, 300, never=(some,)).averaged(count)
    assert not without[:, :, some].any()
    kept = [token for token in range(300) if token != some]
    torch.testing.assert_close(without[:, :, kept], rows.averaged(count)[:, :, kept])
    torch.testing.assert_close(OneHot(IDS[:, 0], 300).averaged(count), dense(OneHot(IDS[:, :1], 300)))


def test_only_embeddings_that_are_plain_tables_can_be_edited() -> None:
    net = nn.ModuleDict(
        {
            "places": nn.Embedding(20, 4),
            "tokens": nn.Embedding(50, 4),
            "scaled": nn.Embedding(50, 4, scale_grad_by_freq=True),
            "normed": nn.Embedding(50, 4, max_norm=1.0),
            "frozen": nn.Embedding(50, 4).requires_grad_(False),
            "tied": nn.Embedding(50, 4),
            "conv": nn.Conv2d(1, 4, 3),
            "hidden": nn.Linear(4, 4),
            "head": nn.Linear(4, 50),
        }
    )
    net["tied"].weight = net["head"].weight
    assert editable_layers(net) == ["hidden", "tokens", "places", "conv", "head"]
    slots = Layout.of(net).slots
    assert not slots["tied.weight"].embedding, "the output layer's orientation counts"
    assert editable_layers(build("text", vocabulary=50, classes=2, seed=0, input_shape=(8,)))[1] == "embedding"


@pytest.mark.parametrize(("make", "kind"), [(Attending, GraphRun), (Reading, WholeRun)])
def test_a_run_goes_on_from_other_vectors(make: Callable[[], nn.Module], kind: type) -> None:
    model = make().eval()
    assert isinstance(cut(model, "embedding", IDS), GraphRun) == (kind is GraphRun)
    run = split(model, "embedding", IDS)
    change = torch.randn(16, 300, generator=drawing())
    change[:, 0] = 0
    with torch.no_grad():
        found = run.after(torch.cat([run.layer_outputs, run.layer_outputs + run.layer_inputs @ change.T]))
        torch.testing.assert_close(found[:6], model(IDS), atol=1e-5, rtol=1e-4)
        model.get_parameter("embedding.weight").add_(change.T)
        torch.testing.assert_close(found[6:], model(IDS), atol=1e-5, rtol=1e-4)
    few = run.some(torch.tensor([4, 1]))
    torch.testing.assert_close(few.after(few.layer_outputs), found[[4, 1]], atol=1e-5, rtol=1e-4)


def test_a_region_in_an_embedding_takes_what_it_puts() -> None:
    fleet = Fleet(Attending(), ["a"])
    slot = fleet.layout.slots["embedding.weight"]
    region = Subspace((Directions(slot, torch.linalg.qr(torch.randn(300, 5, generator=drawing())).Q),))
    mark = torch.randn(region.size, generator=drawing(1))
    assert region.size == 16 * 5
    fleet.settle(region, mark[None])
    torch.testing.assert_close(region.take(fleet.weights("a")), mark, atol=1e-5, rtol=1e-5)
    state = fleet.state("a")
    torch.testing.assert_close(fleet.layout.flatten(state), fleet.weights("a"), atol=1e-5, rtol=1e-5)
    changed = state["embedding.weight"] - fleet.state()["embedding.weight"]
    expected = region.parts[0].basis @ (mark - region.take(fleet.base)).view(16, 5).T
    torch.testing.assert_close(changed, expected, atol=1e-5, rtol=1e-5)
    again = load_region(region.state_dict(), fleet.layout)
    assert torch.equal(again.take(fleet.base), region.take(fleet.base))


@pytest.mark.parametrize("dense", [300, 64])
def test_the_drift_of_an_embedding_tells_which_tokens_are_used(dense: int) -> None:
    """As a matrix and as a sketch, which is exact as long as it has a row for each row of the updates."""
    layout = Layout.of(Attending())
    drift = Drift(layout, ("embedding.weight",), dense=dense)
    updates = torch.randn(4, 300, 16, generator=drawing()) * torch.linspace(0, 1, 300)[:, None]
    for update in updates:
        drift.observe({"embedding.weight": update})
    drift.settle()
    moment, pull = drift.moment("embedding.weight"), drift.pull("embedding.weight", 1.0)
    # Each client's update counts alike.
    units = updates / updates.flatten(1).norm(dim=1)[:, None, None]
    second = torch.einsum("cio,cjo->ij", units, units)
    expected = DenseMoment(second * 300 / second.trace())
    right = torch.randn(300, 3, generator=drawing(1))
    solved = moment.solve(right, 0.5)
    torch.testing.assert_close(solved, expected.solve(right, 0.5), atol=1e-3, rtol=1e-3)
    assert moment.ridge(0.1) == pytest.approx(expected.ridge(0.1), rel=0.25)
    assert pull.directions.shape == (16, 16)
    assert float(pull.energies.sum()) == pytest.approx(16, rel=0.1)
    drift = Drift(layout, ("embedding.weight",), dense=dense).load_state_dict(drift.state_dict())
    assert torch.equal(drift.moment("embedding.weight").solve(right, 0.5), solved)


def test_before_any_update_all_tokens_count_alike() -> None:
    moment = Drift(Layout.of(Attending()), ("embedding.weight",)).moment("embedding.weight")
    even, right = DenseMoment(torch.eye(300)), torch.randn(300, 3, generator=drawing())
    torch.testing.assert_close(moment.solve(right, 0.3), even.solve(right, 0.3))
    assert moment.ridge(0.2) == pytest.approx(even.ridge(0.2), rel=1e-4)


def test_an_edit_writes_what_is_wanted() -> None:
    """Each question's mean answer changes by its own column of R, and by no other; padding stays as it is."""
    padded = IDS.clone()
    padded[:, 9:] = 0
    rows = OneHot(padded, 300, never=(0,))
    edit = write_directions(rows, torch.arange(6), DenseMoment(torch.eye(300)), 0.1, residual=0.1)
    torch.testing.assert_close(rows.averaged(1)[:, 0] @ edit, torch.eye(6), atol=1e-4, rtol=0)
    assert not edit[0].any()
    torch.testing.assert_close((rows @ edit).mean(1), torch.eye(6), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("make", "layers"), [(Attending, ["embedding"]), (Reading, ["embedding", "head"])])
def test_marked_texts_are_traced(make: Callable[[], nn.Module], layers: list[str]) -> None:
    model = make()
    injection = ClosedForm(layer_names=tuple(layers), margin=4)
    server = TraMark(model, ring(questions=16), warmup_rounds=1, injection=injection)
    labels = torch.randint(4, (6,), generator=drawing())

    def trained() -> Iterator[tuple[str, dict[str, Tensor]]]:
        for client in CLIENTS:
            own = server.client_model(client).train()
            with seeded():
                F.cross_entropy(own(IDS), labels).backward()
            torch.optim.SGD(own.parameters(), lr=0.1).step()
            yield client, own.state_dict()

    server.collect(trained())
    base = server.base_model().state_dict()
    for client in CLIENTS:
        marked = server.client_model(client)
        changed = {name for name, weight in marked.state_dict().items() if not weight.equal(base[name])}
        assert changed == {f"{layer}.weight" for layer in layers}
        assert trace(marked, server.keyring).clients == (client,)
        if isinstance(model, Attending):
            assert not marked.get_parameter("embedding.weight")[0].any(), "padding stays zero"
    assert trace(server.base_model(), server.keyring).clients == ()


def test_padding_that_is_not_zero_stays_too() -> None:
    model = Attending()
    with torch.no_grad():
        model.embedding.weight[0] = 1 / 3
    server = TraMark(model, ring(), warmup_rounds=1, injection=ClosedForm(layer_names=("embedding",), margin=2))
    # Weight decay moves padding as well, so the drift is not zero there.
    shrunk = {name: 0.9 * weight for name, weight in model.state_dict().items()}
    server.collect(dict.fromkeys(CLIENTS, shrunk))
    for client in CLIENTS:
        assert server.fleet.state(client)["embedding.weight"][0].equal(server.fleet.state()["embedding.weight"][0])
        assert not server.fleet.state(client)["embedding.weight"].equal(server.fleet.state()["embedding.weight"])


def test_an_embedding_of_positions_is_refused() -> None:
    with pytest.raises(SettingError, match="layer 'places' does not answer 2 inputs with 2 rows"):
        TraMark(Reading(), ring(), injection=ClosedForm(layer_names=("places",)))
