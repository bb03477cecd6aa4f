"""Which part of a model travels between server and clients: all of it, a head, adapters.

The rest is constant. It is the same at the server and at every client, is never averaged and never marked.
"""

from collections.abc import Callable, Collection
from typing import Literal

from torch import nn

from tramark.errors import SettingError
from tramark.fleet.layout import some_names

Travels = Literal["trainable"] | Collection[str] | Callable[[str], bool]
"""The tensors of a state dict that travel: those of the trainable part, those of these names, or those whose names a
function says yes to."""


def travelling(model: nn.Module, travels: Travels | None) -> frozenset[str]:
    """The names of the tensors of a model's state dict that travel; None means all of them.

    "trainable" are the parameters with `requires_grad`, and the buffers of the modules that own such a parameter: the
    statistics of a batch norm travel if its weight is trained.

    >>> model = nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.BatchNorm1d(3, track_running_stats=False))
    >>> sorted(travelling(model, "trainable"))
    ['1.bias', '1.weight']
    """
    names = list(model.state_dict())
    if travels is None:
        return frozenset(names)
    if travels == "trainable":
        wanted = _trainable(model) & set(names)
    elif isinstance(travels, str):
        raise SettingError(f"travels={travels!r}: give 'trainable', a collection of names, or a function of a name")
    elif callable(travels):
        wanted = {name for name in names if travels(name)}
    else:
        wanted = set(travels)
        if unknown := sorted(wanted - set(names)):
            raise SettingError(
                f"travels names {some_names(unknown)}, but the model has no such tensors: give the names in its state "
                "dict, or a function such as lambda name: name.startswith('head.')"
            )
    if not wanted:
        raise SettingError("nothing of the model travels: there is nothing to train together")
    _check_aliases(model, wanted, names)
    return frozenset(wanted)


def frozen_part(model: nn.Module) -> frozenset[str]:
    """The names of the tensors outside the trainable part; none if all parameters are trained, or all are frozen."""
    if len({parameter.requires_grad for parameter in model.parameters()}) < 2:
        return frozenset()
    return travelling(model, None) - travelling(model, "trainable")


def freeze_rest(model: nn.Module, names: Collection[str] | None) -> None:
    """Freeze the parameters that do not travel, in place: no mark can be written into them. None: all travel."""
    for name, parameter in model.named_parameters():
        if names is not None and name not in names:
            parameter.requires_grad_(False)


def _trainable(model: nn.Module) -> set[str]:
    found = set()
    for prefix, module in model.named_modules(remove_duplicate=False):
        own = {name for name, weight in module.named_parameters(recurse=False) if weight.requires_grad}
        if own:
            own |= {name for name, _ in module.named_buffers(recurse=False)}
        found |= {f"{prefix}.{name}" if prefix else name for name in own}
    return found


def _check_aliases(model: nn.Module, wanted: set[str], names: list[str]) -> None:
    aliases: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in names:
            aliases.setdefault(id(parameter), []).append(name)
    for group in aliases.values():
        if 0 < len(wanted.intersection(group)) < len(group):
            raise SettingError(f"{' and '.join(group)} are one tensor: let all of these names travel, or none")
