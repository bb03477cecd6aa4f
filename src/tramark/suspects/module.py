"""suspects.module"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from tramark.errors import SuspectError, one_line
from tramark.suspects.base import Answers, ask_in_batches, preview_inputs
from tramark.suspects.conventions import Conventions, Prepare, conventions_of


class ModuleSuspect:
    """A torch module in memory.

    >>> suspect = ModuleSuspect(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), Conventions())
    >>> suspect.ask(torch.zeros(16, 1, 28, 28, dtype=torch.uint8)).labels.shape
    torch.Size([16])

    `conventions` may be just a `prepare`, such as that of a keyring's source. The module is run where its
    weights are, in evaluation mode and without gradients, and left as it was.
    """

    def __init__(self, module: nn.Module, conventions: Conventions | Prepare, *, batch: int = 256) -> None:
        self.module, self.conventions, self.batch = module, conventions_of(conventions), batch

    def __repr__(self) -> str:
        return f"ModuleSuspect({type(self.module).__name__}, {self.conventions!r})"

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""
        with _evaluating(self.module), torch.no_grad():
            return ask_in_batches(self._ask, raw, self.batch)

    def preview(self, raw: Tensor) -> str:
        """What the module would be fed."""
        return f"{type(self.module).__name__} in memory\n{preview_inputs(self.conventions.inputs(raw))}"

    def _ask(self, raw: Tensor) -> Answers:
        inputs = self.conventions.inputs(raw)
        weights = next(chain(self.module.parameters(), self.module.buffers()), inputs)
        try:
            output = self.module(inputs.to(weights.device))
        except SuspectError:
            raise
        except Exception as error:
            shape = tuple(inputs.shape)
            raise SuspectError(f"the suspect fails on inputs of shape {shape} ({one_line(error)})") from error
        return self.conventions.answers(_tensor(output), len(raw))


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _tensor(output: Any) -> Tensor:
    """The scores or labels among all that a module may return."""
    if isinstance(output, Mapping):
        output = output.get("logits", next(iter(output.values()), None))
    elif isinstance(output, (tuple, list)) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise SuspectError(f"the suspect returns {type(output).__name__}: a tensor of scores or labels is wanted")
    return output
