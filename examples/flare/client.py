"""What a site does: it trains the model that it is sent. Nothing here knows of marks."""

import argparse
import os
from pathlib import Path

import nvflare.client as flare
import torch
from safetensors.torch import save_file

from tramark.lab.data import load
from tramark.lab.models import build
from tramark.lab.simulation.client import LocalTraining
from tramark.lab.simulation.partition import iid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--sites", type=int, required=True)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder for what the site last trained; only the demo asks for it")
    options = parser.parse_args()

    flare.init()
    site = flare.get_site_name()
    number = int(site.rpartition("-")[2])
    dataset = load(options.data)
    shares = iid(
        dataset.train_labels,
        options.sites,
        generator=torch.Generator().manual_seed(0),
        samples_per_client=options.samples,
    )
    learn = LocalTraining(epochs=options.epochs, lr=0.01)
    model = build(options.model, input_shape=dataset.input_shape, classes=dataset.classes)
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict({name: torch.as_tensor(array) for name, array in received.params.items()})
        generator = torch.Generator().manual_seed(1000 * received.current_round + number)
        loss = learn(model, dataset, shares[number], generator=generator)
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            save_file(model.state_dict(), options.keep / f"{site}.part")
            os.replace(options.keep / f"{site}.part", options.keep / f"{site}.safetensors")
        meta = {"NUM_STEPS_CURRENT_ROUND": len(shares[number])}
        flare.send(flare.FLModel(params=model.state_dict(), params_type="FULL", metrics={"loss": loss}, meta=meta))


if __name__ == "__main__":
    main()
