"""What the tests of the report share: a vault, and reports of all kinds of verdicts made with it."""

from collections.abc import Iterator

import pytest
from reports import CASES
from traces import ring, vault_of

from tramark.keys.pictures import Patterns
from tramark.tracing.verdict import Verdict
from tramark.vault.store import Vault


@pytest.fixture(scope="session")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vault]:
    with vault_of(ring(Patterns((1, 12, 12))), tmp_path_factory.mktemp("report")) as made:
        yield made


@pytest.fixture(scope="session")
def verdicts(vault: Vault) -> dict[str, Verdict]:
    """A verdict of each kind."""
    return {case: make(vault.keyring) for case, make in CASES.items()}
