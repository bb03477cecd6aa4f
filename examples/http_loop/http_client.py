"""A federation over plain HTTP: a client. It knows nothing of marks, nor of tramark.

python examples/http_loop/http_client.py --name mayo --secrets runs/http/secrets.json --server http://127.0.0.1:8080
"""

import argparse
import json
import sys
import time
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import torch
from safetensors.torch import load, save, save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "custom_loop"))

from train import CLIENTS, train
from tramark.lab.data import load as load_data
from tramark.lab.simulation.partition import iid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", choices=CLIENTS, required=True)
    parser.add_argument("--secrets", type=Path, required=True, help="a file with the client's secret under its name")
    parser.add_argument("--server", default="http://127.0.0.1:8080")
    parser.add_argument("--keep", type=Path, help="where to keep what was last trained")
    options = parser.parse_args()

    digits = load_data("digits")
    shares = iid(digits.train_labels, len(CLIENTS), generator=torch.Generator().manual_seed(0))
    own = shares[CLIENTS.index(options.name)]
    inputs, labels = digits.prepare(digits.train_inputs[own]), digits.train_labels[own]
    secret = {"Authorization": f"Bearer {json.loads(options.secrets.read_text())[options.name]}"}

    while True:
        try:
            with urlopen(Request(f"{options.server}/model", headers=secret), timeout=60) as reply:
                status, number, body = reply.status, reply.headers["X-Round"], reply.read()
            if status == 200:
                trained = train(load(body), inputs, labels)
                if options.keep:
                    save_file(trained, options.keep)
                headers = {**secret, "X-Round": number, "X-Samples": str(len(own))}
                urlopen(Request(f"{options.server}/update", data=save(trained), headers=headers), timeout=60).close()
        except HTTPError as error:
            if error.code == 410:
                return
            print(f"{options.name}: {error.code} {error.read().decode()}", flush=True)
        except (URLError, HTTPException, OSError):
            pass  # The server is not there: it may come back.
        time.sleep(0.2)


if __name__ == "__main__":
    main()
