"""Marks must be there, be nobody else's, and touch nothing outside the region."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark import Keyring, TraMark
from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.fleet.layout import Layout
from tramark.fleet.moments import DenseMoment, Pull, SketchedMoment
from tramark.fleet.region import Places, Subspace
from tramark.lab.models.vit import VisionTransformer
from tramark.marks.closed_form import ClosedForm
from tramark.marks.directions import tell_apart, write_directions
from tramark.marks.gradient import GradientSteps
from tramark.marks.runs import GraphRun, WholeRun
from tramark.marks.split import split

CLIENTS = ["a", "b", "c", "d"]


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def convolutional() -> nn.Module:
    """With dropout and batch norm, which must both stay out of the way."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(8 * 36, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class Residual(nn.Module):
    """A value from before the edited layer is used again after it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(64, 256), nn.Linear(256, 256), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.first(x.flatten(1)))
        out: Tensor = self.head(hidden + F.relu(self.second(hidden)))
        return out


class Untraceable(Residual):
    """Control flow that depends on the data: torch.fx cannot follow it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 1e30 else x + 0)


class Pooled(nn.Module):
    """No hidden linear layer: the last convolution must bear the marks, with a norm and a way around behind it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.conv, self.norm = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.stem(x))
        out: Tensor = self.head(F.relu(hidden + self.norm(self.conv(hidden))).mean((2, 3)))
        return out


class UntraceablePooled(Pooled):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 1e30 else x + 0)


class Tokens(nn.Module):
    """A linear layer that runs on every position of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix, self.head = nn.Linear(8, 256), nn.Linear(256, 256), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(F.relu(self.mix(F.relu(self.embed(x[:, 0])))).mean(1))
        return out


def vit() -> nn.Module:
    torch.manual_seed(0)
    return VisionTransformer((1, 8, 8), 10, patch=2, dim=64, depth=2, heads=4, hidden=256)


class MeanOfTokens(VisionTransformer):
    """A transformer without a class token: every position reaches the answer."""

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2) + self.places[:, 1:]
        out: Tensor = self.head(self.norm(self.blocks(patches)).mean(1))
        return out


def mean_vit() -> nn.Module:
    torch.manual_seed(0)
    return MeanOfTokens((1, 8, 8), 10, patch=2, dim=64, depth=2, heads=4, hidden=256)


def ring(classes: int = 10, **options: object) -> Keyring:
    return Keyring.generate(
        clients=CLIENTS,
        classes=classes,
        input_shape=(1, 8, 8),
        secret=b"s" * 32,
        **options,  # type: ignore[arg-type]
    )


def confidence(server: TraMark, client: str) -> float:
    key = server.keyring.key(client)
    inputs = server.keyring.inputs(key, "held-out")
    with torch.no_grad():
        said = server.client_model(client)(inputs.flatten(0, 1)).argmax(1).view(inputs.shape[:2])
    return float((said == torch.tensor(key.answers)[:, None]).float().mean())


@pytest.mark.parametrize("make", [mlp, convolutional, Residual, Untraceable, Tokens, Pooled, UntraceablePooled])
def test_written_marks_answer_held_out_variants(make: type[nn.Module]) -> None:
    server = TraMark(make(), ring(questions=16), warmup_rounds=0, injection=ClosedForm(margin=8))
    assert isinstance(server.fleet.region, Subspace)
    assert min(confidence(server, client) for client in CLIENTS) > 0.95


@pytest.mark.parametrize("make", [vit, mean_vit])
def test_a_transformer_is_marked_and_can_be_trained(make: Callable[[], nn.Module]) -> None:
    """Warm-up, marks, and a round with marks: everybody's model answers, and a step of training still goes downhill."""
    server = TraMark(make(), ring(questions=8, pool=64), warmup_rounds=1, injection=ClosedForm(margin=2))
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(32, 1, 8, 8, generator=generator), torch.randint(10, (32,), generator=generator)

    def trained() -> Iterator[tuple[str, dict[str, Tensor]]]:
        for client in CLIENTS:
            model = server.client_model(client).train()
            optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
            before = F.cross_entropy(model(inputs), labels)
            before.backward()
            optimiser.step()
            assert F.cross_entropy(model(inputs), labels) < before
            yield client, model.state_dict()

    for _ in range(2):
        assert not server.collect(trained()).refused
        assert [confidence(server, client) for client in CLIENTS] == [1.0] * 4


@pytest.mark.parametrize("layers", [("conv",), ("stem", "conv")])
def test_convolutions_bear_marks_where_no_hidden_linear_layer_could(layers: tuple[str, ...]) -> None:
    model = Pooled()
    injection = ClosedForm(layer_names=layers, margin=2)
    server = TraMark(model, ring(questions=4, pool=32), warmup_rounds=0, injection=injection)
    before = dict(model.named_parameters())
    for client in CLIENTS:
        marked = server.client_model(client).named_parameters()
        changed = {name for name, weight in marked if not weight.equal(before[name])}
        assert changed == {f"{layer}.weight" for layer in layers}
        assert confidence(server, client) == 1


def test_many_positions_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, owner = torch.randn(8, 6, 40, generator=generator), torch.arange(4).repeat_interleave(2)
    moment = DenseMoment(torch.eye(40))
    monkeypatch.setattr("tramark.marks.directions.COLUMNS", 16)
    pairs = torch.stack([inputs[:, :3].mean(1), inputs[:, 3:].mean(1)], dim=1)
    together, expected = (write_directions(each, owner, moment, 0.02, residual=0.1) for each in (inputs, pairs))
    torch.testing.assert_close(together, expected)
    server = TraMark(Tokens(), ring(questions=16), warmup_rounds=0)
    assert min(confidence(server, client) for client in CLIENTS) > 0.95


@pytest.mark.parametrize("layers", [("1",), ("3",), ("5",), ("1", "3"), ("1", "3", "5")])
def test_any_linear_layers_will_do(layers: tuple[str, ...]) -> None:
    server = TraMark(mlp(), ring(questions=8), warmup_rounds=0, injection=ClosedForm(layer_names=layers))
    assert isinstance(server.fleet.region, Subspace)
    assert len(server.fleet.region.parts) == len(layers)
    assert min(confidence(server, client) for client in CLIENTS) > 0.95


@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes_and_many_clients(classes: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, classes)
    )
    names = [f"c{i}" for i in range(30)]
    keyring = Keyring.generate(clients=names, classes=classes, input_shape=(1, 8, 8), questions=16, secret=b"s" * 32)
    server = TraMark(model, keyring, warmup_rounds=0)
    assert min(confidence(server, client) for client in names) > 0.95


def test_label_answers_can_be_written_too() -> None:
    server = TraMark(mlp(), ring(assignment="label"), warmup_rounds=0)
    for client in CLIENTS:
        assert confidence(server, client) > 0.95


@pytest.mark.parametrize("make", [mlp, convolutional])
@pytest.mark.parametrize("preset", ["default", "paper", "released"])
def test_injection_changes_nothing_outside_the_region(make: type[nn.Module], preset: str) -> None:
    model = make()
    server = TraMark(model, ring(questions=16), warmup_rounds=0, preset=preset)
    fleet = server.fleet
    assert fleet.region is not None
    torch.testing.assert_close(fleet.base, fleet.layout.flatten(model.state_dict()), atol=0, rtol=0)
    models = [fleet.weights(client) for client in CLIENTS]
    assert not torch.equal(models[0], models[1])
    for weights in models:
        fleet.region.put(weights, torch.zeros(fleet.region.size))
        torch.testing.assert_close(weights, models[0], atol=1e-6 * float(fleet.marks.abs().max()), rtol=1e-5)
    for name, tensor in model.state_dict().items():
        if name in fleet.layout.buffers:
            assert torch.equal(tensor, fleet.state("a")[name]), f"{name} must not see the questions"


def naive_steps(server: TraMark, client: str, *, rate: float, batch: int | None, summed: bool, passes: int) -> Tensor:
    """The paper's Algorithm 1, lines 4 to 6, with dense masks."""
    fleet, keyring = server.fleet, server.keyring
    assert isinstance(fleet.region, Places)
    mask = torch.zeros(fleet.layout.size)
    mask[fleet.region.indices] = 1
    model = copy.deepcopy(server.model).eval()
    model.load_state_dict(fleet.state(client))
    key = keyring.key(client)
    inputs = keyring.inputs(key, "train").flatten(0, 1)
    answers = torch.tensor(key.answers).repeat_interleave(keyring.train_variants)
    total = torch.zeros(fleet.layout.size)
    for _ in range(passes):
        for x, y in zip(inputs.split(batch or len(inputs)), answers.split(batch or len(inputs)), strict=True):
            gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
            flat = torch.cat([g.flatten() for g in gradients])
            total = total + flat if summed else flat
            step = (rate * total * mask).split([p.numel() for p in model.parameters()])
            with torch.no_grad():
                for parameter, change in zip(model.parameters(), step, strict=True):
                    parameter.sub_(change.view_as(parameter))
    return fleet.layout.flatten(model.state_dict())


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("batch", [None, 32])
def test_gradient_steps_equal_the_paper(summed: bool, batch: int | None) -> None:
    steps = GradientSteps(ratio=0.05, rate=0.05, batch_size=batch, summed=summed)
    server = TraMark(mlp(), ring(train_variants=4), warmup_rounds=10, injection=steps)
    server.keyring, plan = steps.begin(server.model, server.fleet, server.keyring, server.drift, [])
    options = {"rate": 0.05, "batch": batch, "summed": summed, "passes": 5}
    expected = {client: naive_steps(server, client, **options) for client in CLIENTS}  # type: ignore[arg-type]
    steps.inject(server.model, server.fleet, server.keyring, server.drift, plan)
    for client in CLIENTS:
        torch.testing.assert_close(server.fleet.weights(client), expected[client], atol=1e-6, rtol=1e-5)


def test_directions_are_those_of_the_regularised_least_squares_problem() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 40, generator=generator)
    owner = torch.arange(6).repeat_interleave(4)
    member = F.one_hot(owner).float()
    root = torch.randn(60, 40, generator=generator)
    moment = DenseMoment(root.T @ root * 40 / root.square().sum())
    edit = write_directions(inputs, owner, moment, 0.02, residual=0.1)
    torch.testing.assert_close((member / 4).T @ inputs @ edit, torch.eye(6), atol=1e-4, rtol=1e-4)
    basis = torch.linalg.qr(edit).Q

    def off(damping: float) -> float:
        """How far the naive form's directions, for one λ, are from ours."""
        gram = inputs.T @ inputs + damping * (moment.matrix + 0.02 * torch.eye(40))
        naive = torch.linalg.qr(torch.linalg.solve(gram, inputs.T @ member)).Q
        return float((naive - basis @ (basis.T @ naive)).norm())

    found = [off(10 ** (power / 50)) for power in range(-300, 300)]
    assert min(found) < 0.02
    assert max(found) > 0.5


def test_a_sketch_solves_like_the_matrix_it_stands_for() -> None:
    rows = torch.randn(8, 30, generator=torch.Generator().manual_seed(0))
    right = torch.randn(30, 5, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        SketchedMoment(rows).solve(right, 0.1), DenseMoment(rows.T @ rows).solve(right, 0.1), atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("share", [0.01, 0.03, 0.3])
def test_a_ridge_takes_the_share_of_the_energy_that_it_is_asked_for(share: float) -> None:
    """Of a matrix and of a sketch, whose spectra fall off as those of real layers do."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(300, 300, generator=generator)).Q
    rows = torch.arange(1, 301).pow(-0.75)[:, None] * turn
    rows *= (300 / rows.square().sum()).sqrt()
    energies = rows.square().sum(1)
    for moment in (SketchedMoment(rows), DenseMoment(rows.T @ rows)):
        ridge = moment.ridge(share)
        assert float((energies * ridge / (energies + ridge)).sum() / 300) == pytest.approx(share, rel=0.1)


@pytest.mark.parametrize(("sketch", "inputs"), [(256, 40), (256, 300), (64, 300)])
def test_drift_reveals_which_inputs_a_layer_sees(sketch: int, inputs: int) -> None:
    """As a matrix, as an exact sketch, and as one with far fewer rows than the updates have."""
    torch.manual_seed(0)
    first = nn.Linear(inputs, 30)
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(30, 4))
    layout = Layout.of(model)
    drift = Drift(layout, ("0.weight",), sketch=sketch, dense=256)
    used = torch.linalg.qr(torch.randn(inputs, 5)).Q
    for _ in range(3):
        for _ in range(4):
            seen = torch.randn(64, 5) @ used.T
            loss = F.cross_entropy(model(seen), torch.randint(4, (64,)))
            drift.observe({"0.weight": torch.autograd.grad(loss, first.weight)[0]})
        drift.settle()
    inside = used[:, :1]
    outside = torch.randn(inputs, 1)
    outside -= used @ (used.T @ outside)
    outside /= outside.norm()
    moment = drift.moment("0.weight")
    cost = [float((v.T @ moment.solve(v, 0.02)).squeeze()) for v in (inside, outside)]
    assert cost[0] < 5, "a direction that the data uses is expensive to write along"
    assert cost[1] == pytest.approx(50, rel=0.05), "one that it does not use costs only the ridge"


@pytest.mark.parametrize("columns", [16, 256])
def test_drift_reveals_at_which_outputs_the_data_pulls(columns: int) -> None:
    """With some of the columns of each update, and with all of them."""
    generator = torch.Generator().manual_seed(0)
    layout = Layout.of(nn.Sequential(nn.Linear(60, 30)))
    drift = Drift(layout, ("0.weight",), columns=columns)
    pulled = torch.linalg.qr(torch.randn(30, 3, generator=generator)).Q
    for _ in range(2):
        for _ in range(8):
            update = torch.randn(64, 3, generator=generator) @ pulled.T
            drift.observe({"0.weight": update.T @ torch.randn(64, 60, generator=generator)})
        drift.settle()
    pull = drift.pull("0.weight", 1.0)
    assert pull.energies[3:].max() < 1e-3
    assert float(pull.energies.sum()) == pytest.approx(30, rel=0.3)
    free = torch.randn(30, 5, generator=generator)
    free -= pulled @ (pulled.T @ free)
    torch.testing.assert_close(pull.solve(free), free, atol=1e-4, rtol=1e-4)
    assert pull.solve(pulled).norm() < 0.3 * pulled.norm()
    resumed = Drift(layout, ("0.weight",), columns=columns).load_state_dict(drift.state_dict())
    assert torch.equal(resumed.pull("0.weight", 1.0).energies, pull.energies)
    with pytest.raises(ValueError, match=r"the drift of 0\.weight has the shape"):
        Drift(layout, ("0.weight",), columns=8).load_state_dict(drift.state_dict())


def test_a_pull_is_its_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(12, 3, generator=generator)).Q
    pull = Pull(directions, torch.tensor([5.0, 2.0, 1.0]), ridge=0.5)
    matrix = directions @ pull.energies.diag() @ directions.T + 0.5 * torch.eye(12)
    right = torch.randn(2, 12, 4, generator=generator)
    torch.testing.assert_close(matrix @ pull.solve(right), 0.5 * right, atol=1e-5, rtol=1e-4)


def test_marks_keep_away_from_outputs_at_which_the_data_pulls() -> None:
    """They still answer, and most of what lay along those outputs has gone elsewhere."""
    pulled = torch.linalg.qr(torch.randn(96, 8, generator=torch.Generator().manual_seed(0))).Q

    def along(*, known: bool) -> float:
        torch.manual_seed(0)
        last = nn.Linear(96, 10)
        # Gradients at the outputs of a hidden layer lie where the layers behind it look.
        last.weight.data @= pulled @ pulled.T
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), last)
        server = TraMark(model, ring(questions=8), warmup_rounds=1, injection=ClosedForm(margin=2))
        if known:
            server.drift.load_state_dict({"pull.1.weight": 12 * pulled @ pulled.T, "rounds": torch.tensor(1)})
        server.mark()
        assert all(confidence(server, client) == 1 for client in CLIENTS)
        region = server.fleet.region
        assert isinstance(region, Subspace)
        part = region.parts[0]
        edits = server.fleet.marks.view(4, *part.shape) - part.matrix(server.fleet.base) @ part.basis
        return float((pulled.T @ edits).norm())

    assert along(known=True) < 0.5 * along(known=False)


def test_a_layer_too_small_to_bear_the_margin_is_not_blown_up() -> None:
    """Sixteen questions in a layer of eight inputs: by the full margin they would drown the task."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 10))
    server = TraMark(model, ring(questions=16), warmup_rounds=0, injection=ClosedForm(margin=6))
    region = server.fleet.region
    assert isinstance(region, Subspace)
    part = region.parts[0]
    weight = part.matrix(server.fleet.base)
    edits = server.fleet.marks.view(4, *part.shape) - weight @ part.basis
    assert edits.norm(dim=(1, 2)).max() < 100 * weight.norm()


def test_near_says_how_near_to_the_data_marks_are_written() -> None:
    """What one who keeps only his data's directions leaves of the mark."""
    used = torch.linalg.qr(torch.randn(64, 20, generator=torch.Generator().manual_seed(0))).Q

    def left(near: float) -> float:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
        server = TraMark(model, ring(questions=8), warmup_rounds=1, injection=ClosedForm(near=near))
        server.drift.load_state_dict(
            {"moment.1.weight": 64 * (used * torch.linspace(1, 0.01, 20)) @ used.T / 10.1, "rounds": torch.tensor(1)}
        )
        server.mark()
        region = server.fleet.region
        assert isinstance(region, Subspace)
        part = region.parts[0]
        edits = server.fleet.marks.view(4, *part.shape) - part.matrix(server.fleet.base) @ part.basis
        return float((edits @ part.basis.T @ used).norm() / edits.norm())

    assert left(near=0.5) > 1.2 * left(near=0.002)


@pytest.mark.parametrize(("classes", "share"), [(2, 0.1 / 9), (4, 0.1 / 3), (10, 0.1), (20, 0.1)])
def test_marks_keep_farther_from_the_data_where_there_are_few_labels(
    classes: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = torch.linalg.qr(torch.randn(64, 20, generator=torch.Generator().manual_seed(0))).Q
    matrix = 64 * (used * torch.linspace(1, 0.01, 20)) @ used.T / 10.1

    def marks() -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, classes))
        server = TraMark(model, ring(classes, questions=8), warmup_rounds=1)
        server.drift.load_state_dict({"moment.1.weight": matrix, "rounds": torch.tensor(1)})
        server.mark()
        return server.fleet.marks

    ridge = DenseMoment(matrix).ridge(share)
    expected = marks()
    monkeypatch.setattr(DenseMoment, "ridge", lambda *_: ridge)
    assert torch.equal(expected, marks())


def test_the_labels_that_were_not_asked_for_are_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """They then have nothing to say of their own in an average of several clients' models."""

    def apart(spread: float) -> float:
        model = mlp()
        # A head that has strong opinions.
        model.get_parameter("5.weight").data *= 10
        monkeypatch.setattr("tramark.marks.closed_form.SPREAD", spread)
        server = TraMark(model, ring(questions=16), warmup_rounds=0, injection=ClosedForm(margin=8))
        inputs = server.keyring.inputs(server.keyring.key("a"), "train")[:, 0]
        own = F.one_hot(server.keyring.codebook(), 10).bool()
        with torch.no_grad():
            logits = torch.stack([server.client_model(client)(inputs) for client in CLIENTS])
        widest = logits.masked_fill(own, -torch.inf).amax(-1) - logits.masked_fill(own, torch.inf).amin(-1)
        return float(widest.max())

    assert apart(0.5) < 1.1 < 2 < apart(torch.inf)


def test_labels_that_cannot_be_brought_level_take_the_margin_from_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be more level than level."""
    model = mlp()
    model.get_parameter("5.weight").data *= 10
    monkeypatch.setattr("tramark.marks.closed_form.SPREAD", -0.2)
    server = TraMark(model, ring(questions=4), warmup_rounds=0, injection=ClosedForm(margin=3))
    inputs = server.keyring.inputs(server.keyring.key("a"), "train")[:, 0]
    own = F.one_hot(server.keyring.codebook(), 10).bool()
    with torch.no_grad():
        logits = torch.stack([server.client_model(client)(inputs) for client in CLIENTS])
    leads = logits[own].view(own.shape[:2]) - logits.masked_fill(own, -torch.inf).amax(-1)
    assert leads.min() >= 0.9 * 3


def test_questions_are_chosen_of_which_the_base_has_no_opinion() -> None:
    server = TraMark(mlp(), ring(questions=8, pool=64), warmup_rounds=0)
    candidates = server.keyring.raw(range(64), "train")[:, 0]
    with torch.no_grad():
        logits = server.base_model()(server.keyring.source.prepare(candidates))
    opinions = logits.amax(1) - logits.mean(1)
    assert opinions[list(server.keyring.chosen)].max() <= opinions.sort().values[15]


def test_questions_are_chosen_that_can_be_told_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    distinct = torch.randn(5, 30, generator=generator)
    features = distinct.repeat(10, 1) + 0.01 * torch.randn(50, 30, generator=generator)
    picks = tell_apart(features, SketchedMoment(torch.zeros(1, 30)), 1.0, 5)
    assert sorted(pick % 5 for pick in picks) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("make", "kind"), [(mlp, GraphRun), (Residual, GraphRun), (Untraceable, WholeRun)])
def test_a_split_run_equals_the_whole(make: type[nn.Module], kind: type) -> None:
    model = make().eval()
    layer = "3" if make is mlp else "second"
    inputs = torch.randn(6, 1, 8, 8)
    run = split(model, layer, inputs)
    assert isinstance(run, kind)
    with torch.no_grad():
        torch.testing.assert_close(run.after(run.layer_outputs), model(inputs))
        twice = run.after(torch.cat([run.layer_outputs, run.layer_outputs + 1]))
        torch.testing.assert_close(twice[:6], model(inputs))
        assert not torch.allclose(twice[6:], twice[:6])


def test_a_model_without_a_layer_to_write_into_is_told_what_to_do() -> None:
    with pytest.raises(ValueError, match="region of places"):
        TraMark(nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 10, 64)), ring(), warmup_rounds=1)
    with pytest.raises(ValueError, match="this model has 3, 1, 5"):
        TraMark(mlp(), ring(), injection=ClosedForm(layer_names=("nope",)))


def test_fleet_is_no_bigger_than_it_must_be() -> None:
    server = TraMark(mlp(), ring(questions=16), warmup_rounds=0, injection=ClosedForm(layer_names=("3",)))
    assert server.fleet.marks.shape == (4, 256 * server.keyring.questions)
    assert isinstance(server.fleet, Fleet)


@pytest.mark.parametrize("options", [{"near": 0.0}, {"near": 1.5}, {"retouch": -1}])
def test_what_cannot_be_asked_of_the_closed_form_is_refused(options: dict[str, float]) -> None:
    [(name, value)] = options.items()
    with pytest.raises(ValueError, match=str(value)):
        ClosedForm(**{name: value})  # type: ignore[arg-type]
