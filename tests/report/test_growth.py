"""The evidence that is drawn is the evidence that was weighed."""

import numpy as np
import pytest

from tramark.evidence.statistics import LOOKS
from tramark.evidence.tally import Company
from tramark.report.growth import growth
from tramark.tracing.verdict import Verdict
from tramark.vault.store import Vault


@pytest.mark.parametrize("case", ["client", "second look", "several", "company", "nobody"])
def test_the_evidence_drawn_is_the_evidence_weighed(vault: Vault, verdicts: dict[str, Verdict], case: str) -> None:
    verdict = verdicts[case]
    looks = growth(verdict, vault.keyring)
    assert max(look.queries[-1] for look in looks) == verdict.queries
    company = Company(10, 10, false_accusation=1e-6, share=LOOKS.company)
    for step in verdict.transcript:
        if step.variant == 0:
            company.add(vault.keyring.codebook()[:, step.question].numpy(), step.answer)
    for client in vault.keyring.clients:
        lines = [look.lines[look.clients.index(client)] for look in looks if client in look.clients]
        # All but those who are convicted at once have a second look, or the beginning of one.
        assert len(lines) == (1 if case == "client" else 2) + (client in verdict.by_company)
        if client in verdict.clients:
            assert max(line.max() for line in lines) >= np.log10(verdict.e_values[client]) - 1e-9
        else:
            # What the others' company adds is drawn for the accused alone.
            weighed = [line[-1] for line in lines]
            if case != "client":
                weighed.append(company.log_e()[vault.keyring.clients.index(client)] / np.log(10))
            assert np.log10(verdict.e_values[client]) == pytest.approx(max(weighed))
