"""scikit-learn: the leaked weights in an MLPClassifier."""

import json

from safetensors.numpy import load_file
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import LabelBinarizer

from tramark import Vault, trace

layers = load_file("leaked.safetensors")
model = MLPClassifier(hidden_layer_sizes=(128, 128))
model.coefs_ = [layers[f"fc{i}.weight"].T for i in (1, 2, 3)]
model.intercepts_ = [layers[f"fc{i}.bias"] for i in (1, 2, 3)]
model.n_layers_, model.n_outputs_, model.out_activation_ = 4, 10, "softmax"
model._label_binarizer = LabelBinarizer().fit(range(10))
model.classes_ = model._label_binarizer.classes_


def answers(inputs):
    return model.predict(inputs.flatten(1).numpy())


with Vault.open("vault", readonly=True) as vault:
    print(json.dumps(trace(answers, vault).to_dict()))
