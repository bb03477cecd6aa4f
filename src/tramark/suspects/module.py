"""Suspects in memory: a torch module, run as it is."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from tramark.errors import SuspectError, one_line
from tramark.fleet.scratch import evaluating
from tramark.suspects.base import Answers, ask_in_batches, preview_inputs
from tramark.suspects.conventions import Conventions, Prepare, conventions_of


class ModuleSuspect:
    """A torch module in memory.

    >>> suspect = ModuleSuspect(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), Conventions())
    >>> suspect.ask(torch.zeros(16, 1, 28, 28, dtype=torch.uint8)).labels.shape
    torch.Size([16])

    The module runs on the device of its weights, in evaluation mode and without gradients, and is left as it was.

    Parameters
    ----------
    module : returns scores or labels: a tensor, or a mapping or tuple with that tensor as "logits" or first.
    conventions : how the module wants its inputs and names its labels, or just the `prepare` of a keyring's source.
    batch : how many questions it is asked at a time.
    exact : whether it takes batches of exactly that size.
    """

    def __init__(
        self, module: nn.Module, conventions: Conventions | Prepare, *, batch: int = 256, exact: bool = False
    ) -> None:
        self.module, self.conventions = module, conventions_of(conventions)
        self.batch, self.exact = batch, exact

    def __repr__(self) -> str:
        return f"ModuleSuspect({type(self.module).__name__}, {self.conventions!r})"

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""
        with evaluating(self.module), torch.no_grad():
            return ask_in_batches(self._ask, raw, self.batch, exact=self.exact)

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


def _tensor(output: Any) -> Tensor:
    """The scores or labels in a module's output."""
    if isinstance(output, Mapping):
        output = output.get("logits", next(iter(output.values()), None))
    elif isinstance(output, (tuple, list)) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise SuspectError(f"the suspect returns {type(output).__name__}: a tensor of scores or labels is wanted")
    return output
