"""What each study is: where its numbers stand in the paper, and two sentences on what it shows.

It needs no torch, so that help texts and lists are quick.
"""

from typing import NamedTuple

OURS = "ours"
"""Studies of what the paper does not have."""


class Entry(NamedTuple):
    """A study's line in the list, and the head of its page."""

    paper: str
    title: str
    about: str


CONTENTS: dict[str, Entry] = {
    "main": Entry(
        "Table 1",
        "Accuracy and verification",
        "Accuracy (MA) and verification rate (VR) of FedAvg, WAFFLE, FedTracker and TraMark, over four data sets and "
        "two splits. TraMark is run as in the paper's text, as in its released code and as here, and VR is also given "
        "for models that their clients have trained, for that is what a client can leak.",
    ),
    "interval": Entry(
        "Fig. 1",
        "Confidence, leakage and interval over rounds",
        "The share of a model's answers that are its own client's (confidence) and other clients' (leakage), round by "
        "round. Their difference, the interval, must widen for models to be told apart.",
    ),
    "divergence": Entry(
        "Fig. 5",
        "Divergence over rounds",
        "The mean KL divergence between the clients' models on their own triggers, and VR, round by round. Marks "
        "collide where it stays near zero.",
    ),
    "attacks": Entry(
        "Fig. 2",
        "Pruning and fine-tuning",
        "MA and VR of models after pruning 30 to 99 % of their weights, and after fine-tuning on the thief's data for "
        "up to 30 epochs. The thief starts from the model as it was issued, as in the paper, or as he has trained it.",
    ),
    "finetune-rate": Entry(
        "Fig. 6",
        "Fine-tuning at larger rates",
        "MA and VR after 30 epochs of fine-tuning at rates from 0.01 to 0.1. A rate that removes marks should ruin the "
        "model, too.",
    ),
    "quantisation": Entry(
        "appendix, quantisation",
        "Quantisation",
        "MA and VR of models in FP16 and INT8 beside FP32. Marks must survive the usual ways to deploy a model.",
    ),
    "rnp": Entry(
        "appendix, RNP",
        "Reconstructive neuron pruning",
        "MA and VR after RNP, which removes the channels that a model does not need to relearn its task. The paper "
        "does not give the threshold, so it is swept.",
    ),
    "warmup": Entry(
        "Fig. 3",
        "Rounds of warm-up",
        "MA and VR when marks begin after a share α of the rounds. Marks that begin early disturb training, and marks "
        "that begin late are weak.",
    ),
    "ratio": Entry(
        "Fig. 4 left",
        "Size of the region",
        "MA and VR when marks have 0.1 to 5 % of the weights. A larger region holds marks better and costs accuracy.",
    ),
    "trigger-size": Entry(
        "Fig. 4 right",
        "Number of triggers",
        "MA and VR with 50 to 200 triggers a client. The paper finds 50 too few and no gain beyond 100.",
    ),
    "trigger-source": Entry(
        "Table 2",
        "Source of triggers",
        "MA and VR with triggers from MNIST, SVHN and WafflePattern. A t-test over seeds says whether accuracy differs "
        "from MNIST's.",
    ),
    "cost": Entry(
        "Table 3",
        "Time to make marks",
        "Seconds that the server takes in a round to make the marks of ten clients, for every method. The time that "
        "FedAvg takes for the same round is subtracted.",
    ),
    "full-cost": Entry(
        "appendix, full time",
        "Time of a whole round of the server",
        "Seconds of aggregation, marking and verification of ten clients, for every method. Clients' training is left "
        "out.",
    ),
    "communication": Entry(
        "text: n unicasts of one model",
        "Communication",
        "What the server sends and receives in a round, for every method. Personal models rule out a broadcast, and "
        "nothing else is added.",
    ),
    "sampling": Entry(
        "appendix, more clients",
        "Fifty clients, a fifth of them a round",
        "MA and VR with 50 clients that all take part in each round, or of which 20 % do. Models of all clients are "
        "marked in each round.",
    ),
    "extension": Entry(
        "text: head from 10 to 20 outputs",
        "More clients than labels",
        "MA and VR with 20 clients on ten labels. The paper adds ten outputs to the head, and code answers need none.",
    ),
    "large": Entry(
        "text: ImageNet, 100 clients",
        "A hundred clients on a ViT-B/16",
        "What a server's round takes for a hundred clients of a ViT-B/16, at full size, and whether the models can be "
        "told apart. Weights are random and nobody trains, so there is no MA to compare with the paper's.",
    ),
    "fairness": Entry(
        "appendix, fairness on CIFAR-10",
        "Accuracy of each client's model",
        "MA of each client's model, and its standard deviation over clients. No client should pay more for its mark "
        "than others.",
    ),
    "methods": Entry(
        "appendix, comparison of methods",
        "What methods can do",
        "Whether each method traces by answers alone, needs nothing of the clients, and names a client. Tests hold "
        "what our table says against small federations.",
    ),
    "false-accusations": Entry(
        OURS,
        "False accusations",
        "How often models without a mark are traced to some client, by the paper's arg-max rule and by ours at a bound "
        "of 10⁻⁶. The arg-max rule always accuses somebody.",
    ),
    "queries": Entry(
        OURS,
        "Queries for a verdict",
        "How many questions a trace asks before it names the client, at bounds from 10⁻³ to 10⁻⁹. Each question costs "
        "a query of the suspect's interface.",
    ),
    "collusion": Entry(
        OURS,
        "Collusion",
        "What becomes of models that two to five clients make together. A verdict is right if it names at least one of "
        "them and nobody else.",
    ),
    "many-clients": Entry(
        OURS,
        "Many clients",
        "MA and VR with 10 to 100 clients on ten labels. The paper's label answers end at as many clients as labels.",
    ),
    "two-classes": Entry(
        OURS,
        "Two classes",
        "MA and VR on tasks with two labels, where the paper's scheme has room for two clients. Ours asks more "
        "questions instead.",
    ),
    "modalities": Entry(
        OURS,
        "Pictures, tables and text",
        "MA and VR on pictures, tables and sentences, each with questions of its own kind. The paper has pictures "
        "only.",
    ),
    "zoo": Entry(
        OURS,
        "The zoo",
        "Federations over many data sets, nets and optimisers, all with the defaults, beside FedAvg. A third of them "
        "is held back while defaults are chosen.",
    ),
}
