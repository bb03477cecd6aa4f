"""Keras: the leaked weights in a Sequential model that takes channels last."""

import json

import keras
from safetensors.numpy import load_file

from tramark import Vault, trace

layers = load_file("leaked.safetensors")
dense = [keras.layers.Dense(n, activation=how) for n, how in ((128, "relu"), (128, "relu"), (10, "softmax"))]
model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), *dense])
for i, layer in enumerate(dense, start=1):
    layer.set_weights([layers[f"fc{i}.weight"].T, layers[f"fc{i}.bias"]])


def answers(inputs):
    return model.predict(inputs.movedim(1, -1).numpy(), verbose=0)


with Vault.open("vault", readonly=True) as vault:
    print(json.dumps(trace(answers, vault).to_dict()))
