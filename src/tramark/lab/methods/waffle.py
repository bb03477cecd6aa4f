"""WAFFLE: the server teaches the one model that everybody gets to answer secret questions.

There is one question per class, a pattern in noise, and class c is the answer to question c; 100 triggers, spread over
the classes, are variants of these questions. The model is trained on them before the first round (SGD, momentum 0.5,
weight decay 5e-5, 25 passes) and after each aggregation again, by plain SGD, until it answers 98 % of them or 100
passes are over. Whoever is asked the questions and answers them has the federation's model: which client it came from
cannot be said, since all have the same.

`source="original"` follows the public code: a rate of 0.1 for grey and 5e-4 for colour images, before and between the
rounds. These were chosen for its nets: by default ("ours") the rate is 0.1 before the first round and 0.01 afterwards,
doubled after every ten passes (beyond the first 25) that did not suffice, and steps are cut to norm one, which keeps
deep nets from diverging. `source="table1"` is what the paper's Table 1 calls WAFFLE: 1000 MNIST training images with
their digits as labels (here 100 of each digit), no training before the first round, and after each aggregation 20
passes of batches of 32 at 1e-5 (1e-6 with 100 classes) in training mode, with gradients that are never reset. It needs
`--triggers mnist`. In all three, a suspect is asked other variants than those trained on, by a rule with a bound
(`ClassQuestions.needed`).

B. G. A. Tekgul, Y. Xia, S. Marchal, N. Asokan: WAFFLE: Watermarking in Federated Learning. SRDS 2021.
"""

import math
from typing import Any, ClassVar

from torch import nn

from tramark.errors import SettingError
from tramark.keys.pictures import LabelledImages
from tramark.lab.methods.base import Declared, Finding, Origin, Scene, check_origin, told
from tramark.lab.methods.taught import Rehearsal, Taught
from tramark.suspects.base import Suspect


class Waffle(Taught):
    """WAFFLE's server.

    >>> from tramark.keys.pictures import WafflePatterns
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 10))
    >>> scene = Scene(("alice", "bob"), classes=10, source=WafflePatterns((1, 12, 12)), secret=b"s" * 32)
    >>> server = Waffle.make(net, scene)
    >>> report = server.collect(dict(server.dispatch()))
    >>> import copy
    >>> leaked = copy.deepcopy(net)
    >>> keys = leaked.load_state_dict(server.dispatch()["bob"])
    >>> server.verify(leaked).owned, server.verify(net).owned
    (True, False)

    Parameters
    ----------
    model, scene : as for all.
    source : whose parameters these are, where they are not given.
    rate, momentum, weight_decay, epochs : of the training before the first round.
    retraining_rate : of that after each aggregation.
    goal, passes, batch_size, clip : of both.
    doubling : whether rates that do not suffice are doubled.
    triggers, threshold, false_claim : of the `ClassQuestions` that the model is taught.
    """

    declared: ClassVar[Declared] = Declared("black-box", names_clients=False)

    def __init__(
        self,
        model: nn.Module,
        scene: Scene,
        *,
        source: Origin = "ours",
        rate: float | None = None,
        momentum: float = 0.5,
        weight_decay: float = 5e-5,
        epochs: int = 25,
        retraining_rate: float | None = None,
        goal: float = 0.98,
        passes: int = 100,
        batch_size: int = 64,
        clip: float | None = None,
        doubling: bool | None = None,
        **questions: Any,
    ) -> None:
        check_origin(source)
        if source == "table1":
            if not isinstance(scene.source, LabelledImages):
                raise SettingError("the paper's WAFFLE is taught labelled images: say --triggers mnist with it")
            slow = told(retraining_rate, 1e-6 if scene.classes == 100 else 1e-5)
            self.retraining = Rehearsal(slow, batch_size=32, least=20, passes=20, live=True, summed=True)
            super().__init__(model, scene, **{"triggers": 1000, "images": True} | questions)
            return
        ours = source == "ours"
        colour = len(scene.source.shape) == 3 and scene.source.shape[0] > 1
        usual = 0.1 if ours or not colour else 5e-4
        rate, retraining_rate = told(rate, usual), told(retraining_rate, 0.01 if ours else usual)
        clip = told(clip, 1.0 if ours else math.inf)
        often = 10 if (ours if doubling is None else doubling) else math.inf
        pretraining = Rehearsal(
            rate, momentum, weight_decay, batch_size, clip, goal, epochs, max(epochs, passes), often, statistics=True
        )
        self.retraining = Rehearsal(retraining_rate, 0.0, 0.0, batch_size, clip, goal, passes=passes, doubling=often)
        super().__init__(model, scene, **questions)
        self._teach(pretraining)

    def verify(self, suspect: nn.Module | Suspect) -> Finding:
        """Whether the suspect answers the questions. Everybody's score is the same: the share of right answers."""
        said = self.questions.ask(suspect)
        return Finding(
            accused=(),
            scores=dict.fromkeys(self.fleet.clients, self.questions.accuracy(said)),
            queries=len(said),
            owned=self.questions.claim(said),
        )

    def confidence(self, suspect: nn.Module | Suspect, client: str) -> float:
        """The share of right answers to the held-out variants, whoever the client is."""
        return self.questions.accuracy(self.questions.ask(suspect))

    def _mark(self) -> None:
        self._teach(self.retraining)
