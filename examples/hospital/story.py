"""A leak among five hospitals, from the first round of training to a statement that an expert has verified.

    python examples/hospital/story.py --out runs/hospital --data-dir DIR

The data is PneumoniaMNIST, chest X-rays of children, if `--data-dir` or the cache has it; otherwise scikit-learn's
digits, so that the story can be played anywhere.
"""

import argparse
import json
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from safetensors.torch import save_file
from torch import Tensor, nn

from tramark import (
    Keyring,
    Known,
    Patterns,
    TraMark,
    Vault,
    hand_over,
    make_key_file,
    make_statement,
    open_suspect,
    read_published,
    suspected_at,
    trace,
    verify_statement,
)
from tramark.errors import DataError
from tramark.evidence.annex import decrypted
from tramark.lab.data import Dataset, load
from tramark.lab.models import build
from tramark.lab.simulation.client import LocalTraining, accuracy
from tramark.lab.simulation.partition import iid
from tramark.report.written import write_report
from tramark.tracing.handover import findings_of

HOSPITALS = ("charite", "karolinska", "mayo", "ucsf", "toronto")
LEAKER = "mayo"


def xrays(folder: Path | None) -> Dataset:
    """Chest X-rays, or digits where they cannot be had."""
    try:
        return load("pneumonia-mnist", data_dir=folder)
    except DataError as error:
        print(f"digits instead of X-rays ({error})")
        return load("digits")


def net(data: Dataset) -> nn.Module:
    return build("cnn" if data.classes == 2 else "mlp", input_shape=data.input_shape, classes=data.classes)


def found_vault(path: Path, data: Dataset) -> Vault:
    """Act 1: keys for everybody, sealed; and a commitment that the hospitals get before they train."""
    channels, height, width = data.input_shape
    source = Patterns((channels, height, width), mean=data.mean, std=data.std)
    keyring = Keyring.generate(clients=HOSPITALS, classes=data.classes, source=source)
    return Vault.create(path, keyring, key_file=make_key_file(path.with_name("vault.key")))


def train(server: TraMark, data: Dataset, rounds: int) -> dict[str, dict[str, Tensor]]:
    """Act 2: the hospitals train. Returns what each of them trained last."""
    shares = iid(data.train_labels, len(HOSPITALS), generator=torch.Generator().manual_seed(0), samples_per_client=250)
    learn, returned = LocalTraining(epochs=2, lr=0.01), dict[str, dict[str, Tensor]]()
    while server.round < rounds:
        for number, (name, state) in enumerate(server.dispatch().items()):
            model = net(data)
            model.load_state_dict(state)
            learn(model, data, shares[number], generator=torch.Generator().manual_seed(100 * server.round + number))
            returned[name] = model.state_dict()
        report = server.collect(returned, samples={name: len(own) for name, own in zip(HOSPITALS, shares, strict=True)})
        print(report)
    return returned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for everything; must not exist")
    parser.add_argument("--data-dir", type=Path, help="folder with data sets as .npz")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    torch.manual_seed(0)
    data = xrays(options.data_dir)

    with found_vault(options.out / "vault", data) as vault:
        server = TraMark(net(data), vault=vault, rounds=options.rounds)
        returned = train(server, data, options.rounds)
        right = accuracy(server.base_model(), data.test_inputs, data.test_labels, prepare=data.prepare)
        print(f"the model is right in {right:.1%} of the test images")
        # The questions are settled: this is what the hospitals hold in their hands when a dispute begins.
        published = (options.out / "vault" / "commitment.json").read_bytes()

        # Act 3: a model is offered for sale.
        found = options.out / "found.safetensors"
        save_file(returned[LEAKER], found)
        suspect = open_suspect(found, model=net(data), conventions=vault.keyring.source.prepare)
        verdict = trace(suspect, vault, suspected=suspected_at(str(found)))
        print(f"found.safetensors: {', '.join(verdict.clients) or verdict.finding}, after {verdict.queries} questions")
        assert verdict.case is not None

        # Act 4: a statement for everybody, an annex for the expert alone.
        expert = X25519PrivateKey.generate()
        statement = make_statement(vault, verdict.case)
        findings = findings_of(vault, verdict.case, statement)
        keyring, where = vault.keyring, options.out / "case"
        write_report(where, verdict, keyring, suspect=found.name, statement=statement, findings=findings)
        annex = hand_over(vault, verdict.case, expert.public_key())
        (options.out / "annex.bin").write_bytes(annex)

    # Act 5: the expert has the statement, the annex, his key and what was published. He has no vault.
    known = Known(published=read_published(published))
    checked = verify_statement(statement.text(), decrypted(annex, expert), known)
    print(json.dumps({"accused": checked.clients, "proven": checked.holds}))


if __name__ == "__main__":
    main()
