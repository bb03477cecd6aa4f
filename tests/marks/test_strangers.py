"""Nets of the kinds that users bring must be marked, named and kept as good as their base, or the report says so."""

from pathlib import Path

import pytest
import torch
from federations import SECRET
from learning import Optimiser, Toy, adam, learnt, pictures, play, sgd, tables, texts
from nets import Attending, Reading, mlp
from torch import nn
from traces import vault_of

from tramark import Keyring, TraMark, trace
from tramark.keys.sources import Source, Tokens, Vectors
from tramark.marks.closed_form import MOST_COST, ClosedForm
from tramark.marks.control import FREE
from tramark.vault.store import Vault

CLIENTS = ("a", "b", "c", "d", "e")


def ring(classes: int, questions: int, source: Source | None = None) -> Keyring:
    given = {"source": source} if source else {"input_shape": (1, 8, 8), "normalise": (0.5, 0.5)}
    return Keyring.generate(
        clients=CLIENTS,
        classes=classes,
        questions=questions,
        pool=96,
        secret=SECRET,
        **given,
    )


@pytest.mark.parametrize(
    ("model", "toy", "keyring", "passes", "optimiser"),
    [
        (Attending(), texts(), ring(4, 20, Tokens(12, 300)), 7, adam),
        (Reading(), texts(), ring(4, 20, Tokens(12, 300)), 12, adam),
        (mlp(256, 256, inputs=12, classes=2), tables(), ring(2, 36, Vectors(12)), 5, sgd),
    ],
    ids=["transformer", "lstm", "table"],
)
def test_issued_models_are_named_and_as_good_as_their_base(
    model: nn.Module, toy: Toy, keyring: Keyring, passes: int, optimiser: Optimiser
) -> None:
    server = TraMark(learnt(model, toy, passes, optimiser), keyring, warmup_rounds=1)
    *_, report = play(server, toy, 2, optimiser)
    assert report.made is not None
    assert not report.made.unmarked
    issued = [server.client_model(client) for client in CLIENTS]
    base = toy.accuracy(server.base_model())
    assert base > 0.8, "the task was learnt"
    assert sum(map(toy.accuracy, issued)) / len(issued) > base - 0.03
    assert [trace(one, server.keyring).clients for one in issued] == [(client,) for client in CLIENTS]


def test_a_net_whose_units_are_dead_at_the_questions_is_marked() -> None:
    model = mlp(64, 64, normed=True)
    model.get_parameter("5.bias").data.fill_(-8.0)
    server = TraMark(model, ring(10, 12), warmup_rounds=0, injection=ClosedForm(layer_names=("4",)))
    questions = server.keyring.inputs(server.keyring.key("a"), "train").flatten(0, 1)
    with torch.no_grad():
        assert not model[:7].eval()(questions).any(), "nothing reaches the last layer"  # type: ignore[index]
    report = server.collect(dict(server.dispatch()))
    assert report.made is not None
    assert report.made.reached > 0.95
    assert not report.made.unmarked
    assert trace(server.client_model("c"), server.keyring).clients == ("c",)


def test_marks_in_a_net_with_batch_norm_outlive_adam() -> None:
    toy = pictures()
    server = TraMark(learnt(mlp(64, 64, normed=True), toy, 2, adam), ring(10, 12), warmup_rounds=1)
    *_, report = play(server, toy, 4, adam)
    assert report.survived is not None
    assert report.survived.mean >= 0.9


@pytest.fixture
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Vault:
    """Far more questions than four hidden units can tell apart."""
    return vault_of(ring(10, 24), tmp_path_factory.mktemp("crowded"))


def test_a_net_that_cannot_bear_its_questions_says_so_and_is_not_logged_as_marked(crowded: Vault) -> None:
    toy, injection = pictures(), ClosedForm(layer_names=("3",), margin=6.0)
    with crowded as vault:
        server = TraMark(learnt(mlp(4), toy, 3, sgd), warmup_rounds=1, vault=vault, injection=injection)
        with pytest.warns(UserWarning, match=r"carry no mark and cannot be traced.*fewer questions"):
            [report] = play(server, toy, 1)
        assert report.made is not None
        assert report.made.unmarked
        assert report.made.reached < 0.9
        assert f"without a mark: {', '.join(report.made.unmarked)}" in str(report)
        server.dispatch()
        last = {entry["client"]: entry["marked"] for entry in vault.log() if entry["event"] == "issued"}
    assert last == {client: client not in report.made.unmarked for client in CLIENTS}


@pytest.mark.filterwarnings("ignore:round 1")
@pytest.mark.parametrize("most", [MOST_COST, FREE])
def test_marks_that_cost_too_much_are_given_up_for_the_task(most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of 16 inputs bears the answers at more than marks should cost; more than they may cost, it does not."""
    monkeypatch.setattr("tramark.marks.closed_form.MOST_COST", most)
    toy, injection = pictures(), ClosedForm(layer_names=("3",))
    server = TraMark(learnt(mlp(16), toy, 3, sgd), ring(10, 24), warmup_rounds=1, injection=injection)
    [report] = play(server, toy, 1)
    assert report.made is not None
    if most > FREE:
        assert (report.made.reached, report.made.unmarked) == (1.0, ())
        assert FREE < report.made.cost < most
    else:
        assert report.made.unmarked
        assert report.made.cost == pytest.approx(most)


def test_a_net_that_bears_no_marks_stays_as_it_is_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    toy = pictures()
    monkeypatch.setattr("tramark.marks.closed_form.UNBEARABLE", 0.0)
    with vault_of(ring(10, 24), tmp_path) as vault:
        server = TraMark(learnt(mlp(64), toy, 3, sgd), warmup_rounds=1, vault=vault)
        with pytest.warns(UserWarning, match="no layer of this net bears"):
            [report] = play(server, toy, 1)
        assert not report.marked
        assert "no layer bears marks yet" in str(report)
        server.dispatch()
        assert not any(entry.get("marked") for entry in vault.log())
        assert trace(server.base_model(), server.keyring, premise=vault.premise()).finding == "inconclusive"
        monkeypatch.undo()
        [report] = play(server, toy, 1)
        assert report.marked
