"""A model is looked over before training, and all that is wrong with it is named at once."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from tramark import Keyring, SettingError, TraMark, trace
from tramark.marks.closed_form import ClosedForm
from tramark.suspects.module import ModuleSuspect

CLIENTS = ["a", "b", "c"]


def ring(classes: int = 10) -> Keyring:
    return Keyring.generate(
        clients=CLIENTS, classes=classes, input_shape=(1, 8, 8), normalise=(0.5, 0.5), questions=16, secret=b"s" * 32
    )


def body() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 10))


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class Wrapped(nn.Module):
    """A net whose output is not a plain tensor."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.body, self.form = body(), form

    def forward(self, inputs: Tensor) -> object:
        logits = self.body(inputs)
        hidden = inputs.flatten(1)[:, :, None].expand(-1, -1, 3)
        match self.form:
            case "dict":
                return {"loss": None, "logits": logits}
            case "tuple":
                return hidden, logits
            case "dataclass":
                return Output(None, logits)
        return {"hidden": inputs.flatten(1), "scores": logits}


class Scores(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.model(inputs)["scores"]
        return scores


@pytest.mark.parametrize("form", ["dict", "tuple", "dataclass"])
def test_logits_are_found_in_what_a_model_returns(form: str) -> None:
    server = TraMark(Wrapped(form), ring(), warmup_rounds=0)
    assert type(server.client_model("a")) is Wrapped
    for client in CLIENTS:
        assert trace(server.client_model(client), server.keyring).clients == (client,)


def test_where_the_logits_are_can_be_told() -> None:
    server = TraMark(Wrapped("other"), ring(), warmup_rounds=0, logits="scores")
    for client in CLIENTS:
        suspect = ModuleSuspect(Scores(server.client_model(client)), server.keyring.source.prepare)
        assert trace(suspect, server.keyring).clients == (client,)
    with pytest.raises(SettingError, match="no logits at 'logits'"):
        TraMark(Wrapped("other"), ring(), logits="logits")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_models_of_other_precision_are_marked(dtype: torch.dtype) -> None:
    server = TraMark(body().to(dtype), ring(), warmup_rounds=1)
    for _ in range(2):
        outgoing = server.dispatch()
        assert all(weight.dtype == dtype for weight in outgoing["a"].values())
        server.collect({client: {n: t * 1.01 for n, t in state.items()} for client, state in outgoing.items()})
    for client in CLIENTS:
        model = server.client_model(client)
        assert next(model.parameters()).dtype == dtype
        assert trace(model, server.keyring).clients == (client,)


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.linear(inputs)
        return logits


class Shared(nn.Module):
    """A net that runs its hidden layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.hidden(torch.relu(self.hidden(inputs.flatten(1))))))
        return logits


class Odd(nn.Module):
    def forward(self, inputs: Tensor) -> str:
        return "a cat"

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)


@pytest.mark.parametrize(
    ("model", "messages"),
    [
        (nn.Flatten(), ["no trainable weights"]),
        (Failing(), ["fails on questions of shape (2, 1, 8, 8) (float32)"]),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), ["5 outputs, but the keyring is for 10 classes"]),
        (Odd(), ["the model returns str", "logits="]),
        (nn.Sequential(nn.Conv2d(1, 10, 3)), ["of shape (2, 10, 6, 6)"]),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), ["have no shape yet"]),
        (nn.DataParallel(body()), ["pass model.module"]),
        (nn.Sequential(nn.Flatten(), nn.LayerNorm(64)), ["no trainable linear layer, embedding or convolution"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_is_wrong_is_said_at_once(model: nn.Module, messages: list[str]) -> None:
    with pytest.raises(SettingError) as caught:
        TraMark(model, ring())
    for message in messages:
        assert message in str(caught.value)


def test_all_problems_are_named_together() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    nn.init.constant_(model[3].bias, torch.nan)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"no layer 'nope'.*4 outputs.*NaN"):
        TraMark(model, ring(), injection=ClosedForm(layer_names=("nope",)))


class Attention(nn.Module):
    """A net whose last linear layer but one is called functionally."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(8, 32), nn.Linear(32, 10)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = torch.relu(self.into(inputs.squeeze(1)))
        logits: Tensor = self.head(self.attention(rows, rows, rows, need_weights=False)[0].mean(1))
        return logits


def test_layers_that_are_called_functionally_are_not_chosen() -> None:
    torch.manual_seed(0)
    assert ClosedForm().layers(Attention()) == ("into",)
    assert ClosedForm().layers(Attention(), odd={"into"}) == ("head",)
    TraMark(Attention(), ring(), warmup_rounds=0)


def test_a_layer_that_runs_twice_is_left_out_unless_it_is_asked_for() -> None:
    assert list(TraMark(Shared(), ring()).drift.layers) == ["head.weight"]
    with pytest.raises(SettingError, match="layer 'hidden' runs 2 times"):
        TraMark(Shared(), ring(), injection=ClosedForm(layer_names=("hidden",)))


def test_a_keyring_says_that_its_normalisation_was_not_stated() -> None:
    with pytest.warns(UserWarning, match="normalise=\\(mean, std\\)"):
        unstated = Keyring.generate(clients=CLIENTS, classes=10, input_shape=(1, 8, 8))
    assert "normalisation not stated" in repr(unstated)
    assert "mean 0.5, std 0.5" in repr(ring())
    colour = Keyring.generate(
        clients=CLIENTS, classes=10, input_shape=(3, 8, 8), normalise=((0.1, 0.2, 0.3), 0.5), secret=b"s" * 32
    )
    prepared = colour.source.prepare(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    assert prepared[0, :, 0, 0].tolist() == pytest.approx([-0.2, -0.4, -0.6])
    with pytest.raises(SettingError, match="2 numbers for 3 channels"):
        Keyring.generate(clients=CLIENTS, classes=10, input_shape=(3, 8, 8), normalise=((0.1, 0.2), 0.5))
