"""Ask a suspect again what it was asked in a case, and compare: the record of a case is the word of whoever made it."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tramark.errors import SettingError
from tramark.evidence.annex import Annex
from tramark.evidence.case import Case
from tramark.evidence.looks import Query
from tramark.suspects.base import Adapter
from tramark.suspects.conventions import Prepare
from tramark.suspects.files import open_suspect
from tramark.suspects.http import HttpOptions
from tramark.suspects.json_api import JsonTemplate
from tramark.suspects.weights import ModelName
from tramark.tracing.suspected import conventions_in, suspected_at
from tramark.vault.store import Vault


class Again(NamedTuple):
    """How many of a case's answers a suspect gives again, and whether it is the suspect of the case."""

    same: int
    asked: int
    same_suspect: bool


def ask_again(
    case: Case,
    inputs: Mapping[Query, Tensor],
    target: str,
    *,
    prepare: Prepare | None = None,
    model: ModelName | str | None = None,
    http: HttpOptions | None = None,
) -> Again:
    """Ask the suspect at a path or URL what it was asked in a case, fed and read as the case records.

    Parameters
    ----------
    inputs : what was asked, raw.
    prepare : how the federation normalises. By default as the case records it.
    model, http : as for `open_suspect`.
    """
    suspect = _opened(case, target, prepare, model, http)
    queries = [(one.question, one.variant) for one in case.asked]
    labels = suspect.ask(torch.stack([inputs[query] for query in queries])).labels.tolist()
    same = sum(label == one.answer for label, one in zip(labels, case.asked, strict=True))
    here = suspected_at(target)
    # A module has a digest of its own making, and what it was saved to another.
    known = case.suspect.kind == "module" or (here.sha256, here.kind) == (case.suspect.sha256, case.suspect.kind)
    return Again(same, len(queries), known and (not here.remote or here.name == case.suspect.name))


def asked_in_annex(annex: Annex) -> dict[Query, Tensor]:
    """The inputs that an annex opens, raw."""
    return {
        query: torch.from_numpy(np.frombuffer(data, annex.dtype).reshape(annex.shape).copy())
        for query, data in annex.inputs.items()
    }


def asked_in_case(vault: Vault, number: int) -> dict[Query, Tensor]:
    """The inputs that were asked in a case of a vault, raw."""
    asked = vault.cases.get(number).asked
    return {(one.question, one.variant): vault.keyring.asked(one.question, one.variant) for one in asked}


def _opened(
    case: Case, target: str, prepare: Prepare | None, model: ModelName | str | None, http: HttpOptions | None
) -> Adapter:
    recorded = case.conventions
    if "conventions" not in recorded:
        raise SettingError(f"case {case.number} does not record how its suspect was fed: it was asked in memory")
    conventions = conventions_in(recorded["conventions"], prepare=prepare)
    if recorded["conventions"].get("prepare") and prepare is None and not conventions.normalised:
        raise SettingError("the case records that its suspect was fed as the federation does: give the vault too")
    remote = "://" in target
    template = recorded.get("template")
    return open_suspect(
        target,
        conventions=conventions,
        model=None if remote else model,
        served=model if remote and isinstance(model, str) else None,
        template=JsonTemplate(**{k: v for k, v in template.items() if v is not None}) if remote and template else None,
        http=http if remote else None,
    )
