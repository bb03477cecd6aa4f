"""Retouched questions must be better ones, the same everywhere, and committed to like any others."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tramark import CheckpointError, Keyring, TraMark
from tramark.fleet.moments import DenseMoment
from tramark.keys.pictures import Patterns
from tramark.keys.sources import Vectors, from_description
from tramark.lab import data
from tramark.lab.attacks.base import Loot
from tramark.lab.attacks.difference import second_moment
from tramark.lab.attacks.informed import GuessQuestions
from tramark.lab.simulation.client import LocalTraining
from tramark.marks import retouch
from tramark.marks.closed_form import ClosedForm
from tramark.marks.split import split

SECRET = b"a secret of tests" * 2
CLIENTS = ("alice", "bob", "carol")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, 10))


@pytest.fixture(scope="module")
def loot() -> Loot:
    return Loot(data.load("digits"), torch.arange(600))


@pytest.fixture(scope="module")
def model(loot: Loot) -> nn.Module:
    model = net()
    LocalTraining(epochs=5, lr=0.05)(model, loot.dataset, loot.indices, generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    return model.eval()


@pytest.fixture(scope="module")
def moment(model: nn.Module, loot: Loot) -> DenseMoment:
    matrix = second_moment(model, "3", loot)
    return DenseMoment((matrix * len(matrix) / matrix.trace()).float())


def patterns(loot: Loot, count: int = 12) -> tuple[Patterns, Tensor]:
    source = Patterns((1, 8, 8), mean=loot.dataset.mean, std=loot.dataset.std)
    return source, torch.stack([source.picture(SECRET, question) for question in range(count)])


def price_and_opinion(
    model: nn.Module, moment: DenseMoment, ridge: float, source: Patterns, pictures: Tensor
) -> Tensor:
    """Of variants that no step has looked at: what answers cost that outlive training, and how far logits are apart."""
    own = source.retouch(dict(enumerate(pictures)))
    raw = torch.cat([own.render(SECRET, question, range(7, 8)) for question in range(len(pictures))])
    run = split(model, "3", source.prepare(raw))
    assert isinstance(run.layer_inputs, Tensor)
    gram = run.layer_inputs @ torch.linalg.solve(
        moment.matrix + ridge * torch.eye(len(moment.matrix)), run.layer_inputs.T
    )
    logits = run.after(run.layer_outputs)
    worn = (run.layer_inputs @ moment.matrix * run.layer_inputs).sum()
    return torch.stack([torch.linalg.inv(gram).trace() * worn, (logits.amax(1) - logits.mean(1)).mean()]).detach()


def retouched(
    model: nn.Module, moment: DenseMoment, source: Patterns, pictures: Tensor, *, ridge: float = 0.5, steps: int = 60
) -> Tensor:
    return retouch.retouch(model, "3", moment, ridge, pictures, source.prepare, noise=source.noise, steps=steps)


def test_answers_cost_less_and_the_base_has_no_opinion(model: nn.Module, moment: DenseMoment, loot: Loot) -> None:
    source, pictures = patterns(loot)
    before = copy.deepcopy(model.state_dict())
    better = retouched(model, moment, source, pictures)
    assert better.dtype == torch.uint8
    assert better.shape == pictures.shape
    (price, opinion), (less, calmer) = (
        price_and_opinion(model, moment, 0.5, source, some).tolist() for some in (pictures, better)
    )
    assert less < 0.9 * price
    assert calmer < 0.25 * opinion
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_some_pictures_at_a_time_come_out_the_same(
    model: nn.Module, moment: DenseMoment, loot: Loot, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, pictures = patterns(loot)
    at_once = retouched(model, moment, source, pictures, steps=5)
    monkeypatch.setattr(retouch, "PIECE", 5 * 64)
    assert (retouched(model, moment, source, pictures, steps=5).int() - at_once.int()).abs().max() <= 1


def test_a_layer_that_cannot_tell_so_many_apart_and_a_model_that_diverged(
    model: nn.Module, moment: DenseMoment, loot: Loot
) -> None:
    source, pictures = patterns(loot, 300)
    assert retouched(model, moment, source, pictures, steps=3).shape == pictures.shape
    broken = copy.deepcopy(model)
    broken.get_parameter("0.weight").detach().fill_(torch.nan)
    assert torch.equal(retouched(broken, moment, source, pictures[:4], steps=3), pictures[:4])


def test_a_retouched_question_is_its_picture_and_noise_and_the_others_stay(loot: Loot) -> None:
    source, pictures = patterns(loot)
    picture = torch.full((1, 8, 8), 100, dtype=torch.uint8)
    other = source.retouch({3: picture})
    rendered = other.render(SECRET, 3, range(50)).int()
    assert (rendered - 100).abs().max() <= 26
    assert (rendered.float().mean(0) - 100).abs().max() < 8
    assert not torch.equal(rendered[0], rendered[1])
    assert torch.equal(other.render(SECRET, 4, range(3)), source.render(SECRET, 4, range(3)))
    # What is as it was drawn can just as well be given as a picture: the same bytes come out.
    assert torch.equal(source.retouch({4: pictures[4]}).render(SECRET, 4, range(3)), source.render(SECRET, 4, range(3)))
    assert from_description(other.describe()) == other
    assert "100" not in repr(other)
    assert from_description({k: v for k, v in source.describe().items() if k != "retouched"}) == source
    with pytest.raises(ValueError, match="the picture of question 3 has 63 bytes"):
        Patterns((1, 8, 8), retouched={3: bytes(63)})


def ring(**options: object) -> Keyring:
    known = {
        "clients": CLIENTS,
        "classes": 10,
        "input_shape": (1, 8, 8),
        "questions": 16,
        "pool": 40,
        "common": 0,
        "secret": SECRET,
    }
    return Keyring.generate(**{**known, **options})  # type: ignore[arg-type]


def test_a_choice_with_pictures_changes_the_questions_and_nobodys_answers() -> None:
    keyring = ring()
    pictures = torch.arange(16, dtype=torch.uint8).view(16, 1, 1, 1).expand(16, 1, 8, 8).contiguous()
    chosen = keyring.choose(range(20, 36), pictures)
    assert chosen.source.describe()["retouched"]
    assert not keyring.source.describe()["retouched"]
    assert chosen.pictures is not None
    assert torch.equal(chosen.pictures, pictures)
    assert chosen.key("bob") == keyring.choose(range(20, 36)).key("bob")
    assert Keyring.from_dict(chosen.to_dict()) == chosen
    # Another choice is of questions as they were drawn.
    assert chosen.choose(range(16)) == keyring
    with pytest.raises(ValueError, match="Vectors cannot be retouched"):
        ring(input_shape=None, source=Vectors(6)).choose(range(16), torch.zeros(16, 6))
    assert ring(input_shape=None, source=Vectors(6)).pictures is None


def test_a_server_retouches_what_it_chose_and_goes_on_with_it() -> None:
    server = TraMark(net(), ring(), warmup_rounds=0)
    assert server.keyring.source.describe()["retouched"]
    plain = TraMark(net(), ring(), warmup_rounds=0, injection=ClosedForm(retouch=0))
    assert not plain.keyring.source.describe()["retouched"]
    assert plain.keyring.chosen == server.keyring.chosen
    again = TraMark(net(), server.keyring, warmup_rounds=1)
    again.load_state_dict(server.state_dict())
    with pytest.raises(CheckpointError, match="other questions"):
        again.load_state_dict(plain.state_dict())


def test_a_guess_of_the_questions_takes_off_what_was_guessed_and_little_else(model: nn.Module, loot: Loot) -> None:
    attack = GuessQuestions(guesses=16, retouch=20)
    deaf = attack(model, loot)
    source, _ = patterns(loot)
    moment = second_moment(model, "3", loot)
    moment = DenseMoment((moment * len(moment) / moment.trace()).float())  # type: ignore[assignment]
    guessed = attack._questions(model, "3", moment, moment.ridge(0.1), loot)  # type: ignore[arg-type, attr-defined]
    bias = model.get_parameter("3.bias").detach()

    def said(some: nn.Module, raw: Tensor) -> Tensor:
        return split(some, "3", source.prepare(raw)).layer_outputs - bias

    assert said(deaf, guessed).norm() < 0.05 * said(model, guessed).norm()
    on_data = loot.dataset.test_inputs[:200]
    assert (said(deaf, on_data) - said(model, on_data)).norm() < 0.5 * said(model, on_data).norm()
    with pytest.raises(ValueError, match="at least one"):
        GuessQuestions(guesses=0)


if sys.platform != "win32":
    from traces import case, resigned, vault_of

    from tramark.errors import BadProof, VaultError
    from tramark.evidence.bundle import verify_bundle
    from tramark.vault.commit import prove_questions

    def test_what_was_retouched_is_committed_to_and_proven(tmp_path: Path) -> None:
        keyring = ring()
        pictures = torch.randint(256, (16, 1, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
        with vault_of(keyring, tmp_path) as vault:
            vault.save_keyring(keyring.choose(range(20, 36), pictures))
            vault.save_keyring(vault.keyring.join("dora"))
            assert [link.questions for link in vault.commitments] == [(0, 40), (0, 16), (0, 0)]
            assert [entry["event"] for entry in vault.log()].count("questions-chosen") == 1
            verdict, bundle = case(vault, "bob")
            assert verdict.clients == ("bob",)
            found = verify_bundle(bundle)
            assert found.clients == ("bob",)
            assert any("chosen and retouched" in sentence for sentence in found.proven)
            assert any("without a look at them" in sentence for sentence in found.unproven)
            assert bundle["questions"]["commitment"] == 2
            # Questions as they were drawn were committed to, too, but are no longer what is to be asked.
            first, leaves = vault.storage.chain()[0]
            asked = {part["question"]: [2] for part in bundle["questions"]["questions"]}
            with pytest.raises(BadProof):
                verify_bundle(resigned(bundle, vault, questions=prove_questions(keyring, asked, first, leaves)))
            assert not vault.audit()

    def test_the_same_questions_retouched_again_are_committed_to_again(tmp_path: Path) -> None:
        keyring = ring(pool=16)
        with vault_of(keyring, tmp_path) as vault:
            for shade in (1, 2):
                pictures = torch.full((16, 1, 8, 8), shade, dtype=torch.uint8)
                vault.save_keyring(keyring.choose(range(16), pictures))
                assert case(vault, "alice")[1]["questions"]["commitment"] == 1 + shade
            other = ring(pool=16, input_shape=None, source=Patterns((1, 8, 8), noise=0.2))
            with pytest.raises(VaultError, match="another keyring"):
                vault.save_keyring(other)
