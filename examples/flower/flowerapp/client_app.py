"""What a node does: it trains the model that it is sent, and tests it. Nothing here knows of marks."""

import os
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import save_file
from torch import nn

from flowerapp import task
from tramark.lab.data import Dataset

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    dataset, model = _received(message, context)
    round = int(str(message.content.config_records["config"]["server-round"]))
    loss, samples = task.train(model, dataset, context.node_config, context.run_config, round=round)
    if "keep" in context.node_config:
        _keep(model, Path(str(context.node_config["keep"])))
    return _reply(message, {"train_loss": loss, "num-examples": samples}, model)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    dataset, model = _received(message, context)
    accuracy, samples = task.test(model, dataset, context.node_config, context.run_config)
    return _reply(message, {"accuracy": accuracy, "num-examples": samples})


def _received(message: Message, context: Context) -> tuple[Dataset, nn.Module]:
    dataset = task.load_data(str(context.run_config["data"]))
    model = task.make_model(dataset, seed=0)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return dataset, model


def _reply(message: Message, metrics: dict[str, int | float], model: nn.Module | None = None) -> Message:
    content = RecordDict({"metrics": MetricRecord(dict(metrics))})
    if model is not None:
        content["arrays"] = ArrayRecord(dict(model.state_dict()))
    return Message(content, reply_to=message)


def _keep(model: nn.Module, file: Path) -> None:
    """What a node that means to leak its model does. Only the demo asks for it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(dict(model.state_dict()), file.with_suffix(".part"))
    os.replace(file.with_suffix(".part"), file)
