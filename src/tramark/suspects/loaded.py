"""Suspects whose model was read from a file, in this process or in one of its own (`sandbox`)."""

from pathlib import Path

import torch
from torch import Tensor

from tramark.suspects.base import Answers, Loaded, ask_in_batches, check_shape, preview_inputs
from tramark.suspects.conventions import Conventions, Prepare, conventions_of


class LoadedSuspect:
    """A suspect from a file.

    Parameters
    ----------
    loaded : the model.
    conventions : how it wants its inputs and names its labels, or just the `prepare` of a keyring's source.
    path : the file, for messages.
    confinement : what keeps the model from doing harm (docs/reference/suspects.md); empty if it runs in this process.
    """

    # Nobody counts the questions that a file is asked.
    at_once = True

    def __init__(
        self,
        loaded: Loaded,
        conventions: Conventions | Prepare,
        *,
        path: Path,
        confinement: tuple[str, ...] = (),
    ) -> None:
        self.path, self.confinement = path, confinement
        self._run, self.about = loaded.run, loaded.about
        self.conventions = conventions_of(conventions).with_names(self.about.names).under(self.about.stated)

    def __repr__(self) -> str:
        return f"LoadedSuspect({str(self.path)!r}, {self.conventions!r})"

    @property
    def declared(self) -> tuple[int | None, ...]:
        """The shape of inputs that the file declares; empty if it declares none."""
        return self.about.shape

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""
        return ask_in_batches(self._ask, raw, self.about.batch, exact=self.about.exact)

    def preview(self, raw: Tensor) -> str:
        """What the file's model would be fed."""
        return f"{self.path}\n{preview_inputs(self._inputs(raw))}"

    def _inputs(self, raw: Tensor) -> Tensor:
        inputs = self.conventions.inputs(raw, getattr(torch, self.about.dtype) if self.about.dtype else None).cpu()
        check_shape(inputs, self.about.shape)
        return inputs

    def _ask(self, raw: Tensor) -> Answers:
        return self.conventions.answers(self._run(self._inputs(raw)), len(raw))
