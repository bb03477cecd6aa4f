"""Add tramark to a job: a recipe, or what is made with FLARE's job API."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

from tramark.integrations.nvflare.component import TraMarkServer
from tramark.keys.sources import Normalise
from tramark.marks.begin import Warmup


def add_tramark(
    job: "Recipe | FedJob",
    *,
    vault: str | Path,
    input_shape: Sequence[int] | None = None,
    normalise: Normalise | None = None,
    classes: int | None = None,
    questions: int | None = None,
    warmup_rounds: Warmup = "auto",
    preset: str = "default",
    logits: str | int | None = None,
    travels: str | Sequence[str] | None = None,
    model_id: str = "persistor",
) -> None:
    """Let a job's server give every site a model of its own; the options are those of `TraMarkServer`.

    The server must have tramark installed. The sites need not: nothing of it goes into their part of the job.
    """
    fed_job: Any = job._job if isinstance(job, Recipe) else job
    # A copy of some of tramark's files in the job would hide the server's own.
    fed_job.set_app_packages([*fed_job.job.app_packages, "tramark"])
    component = TraMarkServer(
        str(vault),
        input_shape=None if input_shape is None else list(input_shape),
        normalise=normalise,
        classes=classes,
        questions=questions,
        warmup_rounds=warmup_rounds,
        preset=preset,
        logits=logits,
        travels=travels if travels is None or isinstance(travels, str) else list(travels),
        model_id=model_id,
    )
    fed_job.to_server(component, id="tramark")
