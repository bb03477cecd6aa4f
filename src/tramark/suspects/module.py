"""Suspects in memory: a torch module, run as it is."""

from itertools import chain

import torch
from torch import Tensor, nn

from tramark.errors import SettingError, SuspectError, one_line
from tramark.fleet.logits import find_logits, take_logits
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
    module : returns scores or labels: a tensor, or a mapping, tuple or object that holds it.
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
            output = self.module(_fitting(inputs, weights))
        except SuspectError:
            raise
        except Exception as error:
            shape = tuple(inputs.shape)
            raise SuspectError(f"the suspect fails on inputs of shape {shape} ({one_line(error)})") from error
        try:
            said = take_logits(output, find_logits(output))
        except SettingError:
            raise SuspectError(
                f"the suspect returns {type(output).__name__}: a tensor of scores or labels is wanted"
            ) from None
        return self.conventions.answers(said, len(raw))


def _fitting(inputs: Tensor, weights: Tensor) -> Tensor:
    """Inputs on the device of the weights and, if both are floating-point, in their precision."""
    both = inputs.is_floating_point() and weights.is_floating_point()
    return inputs.to(weights.device, weights.dtype if both else inputs.dtype)
