"""Suspects in memory: a torch module or a Python function, run as it is."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tramark.errors import SettingError, SuspectError, one_line
from tramark.suspects.base import Answers, Suspect, ask_in_batches, preview_inputs
from tramark.suspects.conventions import Conventions, Prepare, conventions_of
from tramark.suspects.forward import forward

Function = Callable[[Tensor], Any]


class FunctionSuspect:
    """A Python function that answers a batch of inputs.

    >>> suspect = FunctionSuspect(lambda inputs: inputs.flatten(1).sum(1) > 0, Conventions())
    >>> suspect.ask(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).labels
    tensor([0, 0])

    Parameters
    ----------
    function : takes a tensor of inputs. It returns one row of scores, one label or one name of a label for each: a
        tensor, an array or a list.
    conventions : how it wants its inputs and names its labels, or just the `prepare` of a keyring's source.
    batch : how many questions it is asked at a time.
    """

    at_once = True

    def __init__(self, function: Function, conventions: Conventions | Prepare, *, batch: int = 256) -> None:
        self.function, self.conventions, self.batch = function, conventions_of(conventions), batch

    def __repr__(self) -> str:
        return f"FunctionSuspect({getattr(self.function, '__name__', 'function')}, {self.conventions!r})"

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""
        return ask_in_batches(self._ask, raw, self.batch)

    def preview(self, raw: Tensor) -> str:
        """What the function would be given."""
        return f"a function in memory\n{preview_inputs(self.conventions.inputs(raw))}"

    def _ask(self, raw: Tensor) -> Answers:
        inputs = self.conventions.inputs(raw)
        try:
            said = self.function(inputs)
            if isinstance(said, (list, tuple)) and all(one is None or isinstance(one, (str, int)) for one in said):
                said = list(said)
            elif not isinstance(said, Tensor):
                said = getattr(said, "tolist", lambda: said)()
                said = said if said and isinstance(said[0], str) else torch.as_tensor(said)
        except SuspectError:
            raise
        except Exception as error:
            shape = tuple(inputs.shape)
            raise SuspectError(f"the suspect fails on inputs of shape {shape} ({one_line(error)})") from error
        return self.conventions.answers(said, len(raw))


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
    """

    at_once = True

    def __init__(self, module: nn.Module, conventions: Conventions | Prepare, *, batch: int = 256) -> None:
        self.module, self.conventions, self.batch = module, conventions_of(conventions), batch

    def __repr__(self) -> str:
        return f"ModuleSuspect({type(self.module).__name__}, {self.conventions!r})"

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""
        return ask_in_batches(self._ask, raw, self.batch)

    def preview(self, raw: Tensor) -> str:
        """What the module would be fed."""
        return f"{type(self.module).__name__} in memory\n{preview_inputs(self.conventions.inputs(raw))}"

    def _ask(self, raw: Tensor) -> Answers:
        return self.conventions.answers(forward(self.module, self.conventions.inputs(raw)), len(raw))


def suspect_of(given: nn.Module | Suspect | Function, prepare: Prepare) -> Suspect:
    """The suspect given. A module or a function is fed what `prepare` makes of questions."""
    if isinstance(given, nn.Module):
        return ModuleSuspect(given, prepare)
    if hasattr(given, "ask"):
        return given
    if callable(given):
        return FunctionSuspect(given, prepare)
    kind = type(given).__name__
    raise SettingError(f"a {kind} cannot be asked: give a module, a function or what open_suspect returns")
