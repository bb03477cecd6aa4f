"""What it costs a thief who knows the method to scrub a mark off, and what it costs the task to make that hard.

A federation is warmed up once, unmarked. From there marks are written in several ways: with different numbers of
questions, nearer to or farther from the clients' data (`ClosedForm.near`), with more or less regard to the outputs at
which its gradients pull (`PULL_RIDGE`), and so on for other parameters and constants of the closed form; or, with
`--rates`, trained in the paper's places instead (the smallest weights of each tensor, as in its code), at learning
rates at which that leaves a mark. With `--marked-rounds` the federation then goes on for so many rounds, as gradient
steps need. Some clients train their models once more, and then keep of the edited layer only the directions that hold
a share of the energy of their own data (`project-inputs`); `0.95/0.9` means 95 % of the inputs' energy, but nothing
is taken off the outputs that hold 90 % of the gradients'. A row gives the accuracy of the issued models, how far
their answers on test images are from the base's (the mean KL divergence: far less noisy than a difference of
accuracies), how much of a gradient runs back through the marks on clients' data and how much of the layer's output is
theirs (each beside the unmarked layer's), what the projection costs the thief, and what it leaves of the mark: the
share of right answers, and how many thieves are named at a bound of 10⁻⁶. `--sketch` is how many rows the server
keeps of the clients' updates.

    python benchmarks/frontier.py --nears 0.01 0.03 0.1 --questions 16 32 --scrubs 0.99 0.95/0.9 --json
"""

import argparse
import copy
import itertools
import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark import Keyring
from tramark.lab.attacks import Loot
from tramark.lab.attacks.informed import ProjectInputs
from tramark.lab.methods.tramark import Traced
from tramark.lab.simulation.checkpoint import warm_start
from tramark.lab.simulation.client import accuracy
from tramark.lab.simulation.run import Settings, prepare
from tramark.lab.simulation.simulator import Simulation
from tramark.marks import closed_form, draft, trial
from tramark.marks.closed_form import ClosedForm
from tramark.marks.gradient import GradientSteps

NETS = {"fashion-mnist": "cnn", "cifar-10": "small-cnn"}

CLOSED_FORM = ("near", "margin", "retouch")
CONSTANTS = {"PULL_RIDGE": draft, "SPREAD": closed_form, "CALM": trial}
"""Constants of the closed form that this benchmark alone changes."""
STEPS = ("rate", "passes")
"""What tells one way of each kind from another."""


class Study:
    """A warmed-up federation, and what becomes of marks in it."""

    def __init__(self, simulation: Simulation, clients: int, samples: int, rounds: int = 0) -> None:
        method = simulation.method
        assert isinstance(method, Traced)
        self.warm, self.simulation, self.samples, self.rounds = method, simulation, samples, rounds
        self.clients = method.fleet.clients[:clients]

    def accuracy(self, model: nn.Module) -> float:
        data = self.simulation.dataset
        inputs, labels = data.test_inputs[: self.samples], data.test_labels[: self.samples]
        return accuracy(model, inputs, labels, prepare=data.prepare)

    @torch.no_grad()
    def divergence(self, model: nn.Module, base: nn.Module) -> float:
        data, total = self.simulation.dataset, 0.0
        for raw in data.test_inputs[: self.samples].split(500):
            ours, theirs = (m(data.prepare(raw)).log_softmax(1) for m in (model, base))
            total += float(F.kl_div(ours, theirs, reduction="sum", log_target=True))
        return total / self.samples

    def share(self, model: nn.Module, base: nn.Module, number: int) -> tuple[float, float]:
        """The mark's part in the gradient that leaves its layer for those before it, and in the layer's output."""
        data = self.simulation.dataset
        [name] = ClosedForm().layers(model)
        own = base.get_parameter(f"{name}.weight").detach()
        edit = model.get_parameter(f"{name}.weight").detach() - own
        some = self.simulation.parts[number][:512]
        seen: list[tuple[Tensor, Tensor]] = []
        hook = model.get_submodule(name).register_forward_hook(lambda _, fed, out: seen.append((fed[0].detach(), out)))
        loss = F.cross_entropy(model(data.prepare(data.train_inputs[some])), data.train_labels[some])
        hook.remove()
        [(fed, out)] = seen
        [pull] = torch.autograd.grad(loss, out)
        return _ratio(pull @ edit, pull @ own), _ratio(fed @ edit.T, fed @ own.T)

    def marked(self, questions: int, injection: ClosedForm | GradientSteps) -> Traced:
        old = self.warm.keyring
        keyring = Keyring.generate(
            clients=old.clients, classes=old.classes, source=old.source, secret=old.secret, questions=questions
        )
        server = Traced(self.warm.base_model(), keyring, warmup_rounds=1, injection=injection)
        server.drift.sketch, server.drift.dense = self.warm.drift.sketch, self.warm.drift.dense
        server.drift.load_state_dict(self.warm.drift.state_dict())
        server.mark()
        federation = replace(self.simulation, method=server, evaluation_samples=100)
        for _ in range(self.rounds):
            federation.step()
        return server

    def rows(
        self, questions: int, injection: ClosedForm | GradientSteps, scrubs: Sequence[ProjectInputs]
    ) -> list[dict[str, Any]]:
        server = self.marked(questions, injection)
        base, issued = server.base_model(), [server.client_model(client) for client in self.clients]
        trained = [self._trained(model, number) for number, model in enumerate(issued)]
        fields = CLOSED_FORM if isinstance(injection, ClosedForm) else STEPS
        common: dict[str, Any] = {"questions": questions} | {name: getattr(injection, name) for name in fields}
        if isinstance(injection, ClosedForm):
            common |= {name.lower(): getattr(module, name) for name, module in CONSTANTS.items()}
        common["ma_issued"] = _mean(map(self.accuracy, issued))
        if isinstance(injection, ClosedForm):
            # With a region of places the base has no weights of its own there to compare with.
            common["ma_base"] = self.accuracy(base)
            common["kl_issued"] = _mean(self.divergence(model, base) for model in issued)
            shares = [self.share(model, base, number) for number, model in enumerate(issued)]
            common |= {"back": _mean(back for back, _ in shares), "output": _mean(output for _, output in shares)}
        rows = [{**common, "scrub": None, **self._left(server, trained)}]
        for scrub in scrubs:
            scrubbed = [scrub(model, self._loot(number)) for number, model in enumerate(trained)]
            rows.append({**common, "scrub": [scrub.energy, scrub.outputs], **self._left(server, scrubbed)})
        return rows

    def _left(self, server: Traced, models: Sequence[nn.Module]) -> dict[str, Any]:
        named = [server.verify(model).accused == (client,) for client, model in zip(self.clients, models, strict=True)]
        confidences = (server.confidence(model, client) for client, model in zip(self.clients, models, strict=True))
        return {
            "ma": _mean(map(self.accuracy, models)),
            "confidence": _mean(confidences),
            "vr": sum(named) / len(named),
        }

    def _loot(self, number: int) -> Loot:
        return Loot(self.simulation.dataset, self.simulation.parts[number])

    def _trained(self, model: nn.Module, number: int) -> nn.Module:
        model, simulation = copy.deepcopy(model), self.simulation
        generator = torch.Generator().manual_seed(number)
        simulation.training(model, simulation.dataset, simulation.parts[number], generator=generator)
        return model.eval()


def _ratio(ones: Tensor, others: Tensor) -> float:
    return float(ones.square().sum() / others.square().sum())


def _scrub(text: str) -> ProjectInputs:
    energy, _, outputs = text.partition("/")
    return ProjectInputs(float(energy), outputs=float(outputs or 0))


def _mean(values: Iterable[float]) -> float:
    return round(statistics.fmean(values), 5)


def _warmed_up(options: argparse.Namespace) -> Simulation:
    settings = Settings(
        data=options.data, model=NETS[options.data], samples_per_client=1000, local_epochs=2,
        rounds=options.rounds + 2, warmup=options.rounds + 1, seed=options.seed,
    )  # fmt: skip
    with prepare(settings, workers=None) as simulation:
        simulation.evaluation_samples = 100
        assert isinstance(simulation.method, Traced)
        if options.sketch is not None:
            simulation.method.drift.sketch = simulation.method.drift.dense = options.sketch
        for _ in range(options.rounds):
            simulation.step()
    return simulation


def _from(run: Path) -> Simulation:
    simulation = prepare(Settings(**json.loads((run / "config.json").read_text())))
    warm_start(run / "warmup.safetensors", simulation.method)
    return simulation


def _ways(options: argparse.Namespace) -> Iterator[ClosedForm | GradientSteps]:
    for rate in options.rates or ():
        yield GradientSteps(rate=rate, passes=options.passes, per_tensor=True, batch_size=32)
    if options.rates:
        return
    for constants in itertools.product(options.pull_ridges, options.spreads, options.calms):
        for (name, module), value in zip(CONSTANTS.items(), constants, strict=True):
            setattr(module, name, value)
        for values in itertools.product(options.nears, options.margins, options.retouches):
            yield ClosedForm(**dict(zip(CLOSED_FORM, values, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=NETS, default="fashion-mnist")
    parser.add_argument("--rounds", type=int, default=12, help="of warm-up")
    parser.add_argument("--nears", type=float, nargs="+", default=[ClosedForm.near])
    parser.add_argument("--pull-ridges", type=float, nargs="+", default=[draft.PULL_RIDGE])
    parser.add_argument("--questions", type=int, nargs="+", default=[32])
    parser.add_argument("--margins", type=float, nargs="+", default=[ClosedForm.margin], help="steered, unless told")
    parser.add_argument("--spreads", type=float, nargs="+", default=[closed_form.SPREAD])
    parser.add_argument("--calms", type=int, nargs="+", default=[trial.CALM])
    parser.add_argument("--retouches", type=int, nargs="+", default=[ClosedForm.retouch], help="steps")
    parser.add_argument(
        "--rates", type=float, nargs="+", help="of gradient steps in places, instead of the closed form"
    )
    parser.add_argument("--passes", type=int, default=20, help="of those steps over the questions")
    parser.add_argument("--marked-rounds", type=int, default=0, help="that follow the first marks")
    parser.add_argument("--sketch", type=int, help="rows kept of the clients' updates, in wider layers than that")
    parser.add_argument("--warm-from", type=Path, help="folder of a run whose warm-up is taken instead of a new one")
    parser.add_argument(
        "--scrubs", type=_scrub, nargs="*", default=list(map(_scrub, ["0.999", "0.99", "0.98", "0.95/0.9"]))
    )
    parser.add_argument("--clients", type=int, default=3, help="how many of the ten clients turn thieves")
    parser.add_argument("--test-samples", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    options = parser.parse_args()
    simulation = _from(options.warm_from) if options.warm_from else _warmed_up(options)
    study = Study(simulation, options.clients, options.test_samples, options.marked_rounds)
    rows: list[dict[str, Any]] = []
    for questions in options.questions:
        for injection in _ways(options):
            new = study.rows(questions, injection, options.scrubs)
            rows += [{"data": simulation.dataset.name, **row} for row in new]
            if not options.json:
                print(
                    *("  ".join(f"{k} {v}" for k, v in row.items()) for row in rows[-len(new) :]), sep="\n", flush=True
                )
    if options.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
