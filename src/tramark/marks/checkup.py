"""Look a model over before training begins, and name everything that would keep it from being marked."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tramark.errors import SettingError, one_line
from tramark.fleet.layout import Layout
from tramark.fleet.logits import Pick, find_logits, take_logits
from tramark.fleet.scratch import device_of, evaluating
from tramark.keys.keyring import Keyring
from tramark.marks.injection import Injection
from tramark.marks.layers import editable_layers

WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def check(
    model: nn.Module, keyring: Keyring, injection: Injection, pick: Pick | None = None
) -> tuple[Pick | None, tuple[str, ...]]:
    """Where the logits are in what the model returns, and the layers that marks can be written into.

    `SettingError` with all reasons if it cannot be marked. Where one of several layers is to be chosen, those that
    cannot bear marks are left out.

    The model must take a batch of the keyring's questions as its one argument. `pick` says where the logits are if
    they are not found by themselves.

    >>> ring = Keyring.generate(clients=["alice"], classes=10, input_shape=(1, 8, 8), normalise=(0.5, 0.5))
    >>> from tramark.marks.closed_form import ClosedForm
    >>> check(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), ring, ClosedForm())
    Traceback (most recent call last):
    tramark.errors.SettingError: this Sequential cannot be marked: it has 5 outputs, but the keyring is for 10 classes
    """
    reasons, layers = _weight_problems(model), ()  # type: list[str], tuple[str, ...]
    if not reasons:
        answers: dict[str, list[Tensor]] = defaultdict(list)
        layers, missing = _layers(model, injection)
        inputs = _two_questions(keyring)
        known = editable_layers(model) if layers else []
        handles = [model.get_submodule(name).register_forward_hook(_keeping(answers[name])) for name in known]
        try:
            pick, wrong = _look_at_answers(model, inputs, keyring.classes, pick)
        finally:
            for handle in handles:
                handle.remove()
        odd = _layer_problems(answers, len(inputs)) if any(answers.values()) else {}
        layers, none = _layers(model, injection, odd) if layers else ((), [])
        reasons = [*missing, *wrong, *(odd.values() if none else [odd[name] for name in layers if name in odd])]
    if reasons:
        raise SettingError(f"this {type(model).__name__} cannot be marked: " + "; ".join(reasons))
    return pick, layers


def _weight_problems(model: nn.Module) -> list[str]:
    if lazy := [name for name, weight in model.named_parameters() if is_lazy(weight)]:
        return [f"{_some(lazy)} have no shape yet: run a batch through the model first"]
    found = []
    if isinstance(model, WRAPPERS):
        found.append(f"it is wrapped in {type(model).__name__}: pass model.module")
    if odd := [name for name, weight in model.named_parameters() if weight.is_complex()]:
        found.append(f"{_some(odd)} are complex: marks are made in real weights")
    try:
        Layout.of(model)
    except SettingError as error:
        found.append(str(error))
    return found


def _layers(model: nn.Module, injection: Injection, odd: Collection[str] = ()) -> tuple[tuple[str, ...], list[str]]:
    """The layers that marks may be written into, or why there are none."""
    try:
        return injection.layers(model, odd), []
    except SettingError as error:
        return (), [str(error)]


def _keeping(answers: list[Tensor]) -> Callable[..., None]:
    return lambda _, args, output: answers.append(output)


def _layer_problems(answers: Mapping[str, Sequence[Tensor]], count: int) -> dict[str, str]:
    found = {}
    for name, own in answers.items():
        if len(own) != 1:
            found[name] = f"layer {name!r} runs {len(own)} times in one pass: choose another"
        elif own[0].is_nested or len(own[0]) != count:
            # Positions of a sequence come first, say, or an embedding is that of positions, not of tokens.
            found[name] = f"layer {name!r} does not answer {count} inputs with {count} rows: choose another"
    return found


def _two_questions(keyring: Keyring) -> Tensor:
    questions = (keyring.chosen or (0,))[:2]
    return keyring.source.prepare(torch.stack([keyring.asked(question, 0) for question in questions]))


def _look_at_answers(
    model: nn.Module, inputs: Tensor, classes: int, pick: Pick | None
) -> tuple[Pick | None, list[str]]:
    """Where the logits are in what the model answers to some questions, and what is wrong with them."""
    try:
        with evaluating(model), torch.no_grad():
            output = model(inputs.to(device_of(model)))
    except Exception as error:  # whatever a stranger's forward() does with an input that it does not expect
        shape, dtype = tuple(inputs.shape), str(inputs.dtype).removeprefix("torch.")
        return pick, [f"it fails on questions of shape {shape} ({dtype}): {one_line(error)}"]
    try:
        pick = find_logits(output) if pick is None else pick
        return pick, _logit_problems(take_logits(output, pick), len(inputs), classes)
    except SettingError as error:
        return pick, [str(error)]


def _logit_problems(logits: Tensor, count: int, classes: int) -> list[str]:
    if logits.dim() != 2 or len(logits) != count or not logits.is_floating_point():
        shape = tuple(logits.shape)
        return [f"it answers {count} questions with {logits.dtype} of shape {shape}: a row of logits each is wanted"]
    found = []
    if logits.shape[1] < classes:
        found.append(f"it has {logits.shape[1]} outputs, but the keyring is for {classes} classes")
    if not torch.isfinite(logits).all():
        found.append("it answers questions with NaN or infinity")
    return found


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
