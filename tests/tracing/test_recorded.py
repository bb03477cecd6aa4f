"""A closed case gives the verdict again that its trace gave."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor
from traces import Oracle, leaked_by, ring, vault_of

from tramark.errors import SettingError
from tramark.evidence.case import Suspected
from tramark.keys.pictures import Patterns
from tramark.suspects.base import Answers
from tramark.tracing.recorded import verdict_of
from tramark.tracing.trace import trace
from tramark.vault.store import Vault

FILE = Suspected("file", "model.onnx", "5e" * 32)


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Vault:
    return vault_of(ring(Patterns((1, 8, 8))), tmp_path_factory.mktemp("recorded"))


@pytest.mark.parametrize(
    "options",
    [{}, {"exhaustive": True}, {"budget": 3}, {"rule": "paper"}, {"false_accusation": 0.01}],
    ids=lambda options: str(*options),
)
@pytest.mark.parametrize("leakers", [(), ("hospital-3",), ("hospital-1", "hospital-8")], ids=len)
def test_a_case_gives_its_verdict_again(vault: Vault, options: dict[str, object], leakers: tuple[str, ...]) -> None:
    suspect = leaked_by(vault.keyring, *leakers) if leakers else Oracle(vault.keyring, lambda q, v: 0)
    verdict = trace(suspect, vault, suspected=FILE, **options)  # type: ignore[arg-type]
    assert verdict.case is not None
    assert verdict_of(vault.cases.get(verdict.case.number), vault.keyring) == verdict


def test_clients_who_joined_later_are_not_in_it(tmp_path: Path) -> None:
    with vault_of(ring(), tmp_path) as vault:
        verdict = trace(leaked_by(vault.keyring, "hospital-3"), vault, suspected=FILE)
        assert verdict.case is not None
        assert verdict_of(verdict.case, vault.keyring.join("late")) == verdict


class Silent:
    """A suspect that does not answer."""

    def ask(self, raw: Tensor) -> Answers:
        raise KeyboardInterrupt


def test_a_case_that_is_not_closed_has_no_verdict(vault: Vault) -> None:
    with pytest.raises(KeyboardInterrupt):
        trace(Silent(), vault, suspected=replace(FILE, sha256="11" * 32))
    with pytest.raises(SettingError, match="is not closed"):
        verdict_of(vault.cases.all()[-1], vault.keyring)
