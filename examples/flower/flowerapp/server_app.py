"""What the server does: FedAvg, in which every node's model can be traced."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from flowerapp import task
from tramark.integrations.flower import TraMarkStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config: task.Config = context.run_config
    dataset = task.load_data(config["data"])
    model = task.make_model(dataset, seed=config["seed"])
    strategy: Strategy = FedAvg(fraction_train=config["fraction-train"], fraction_evaluate=config["fraction-evaluate"])
    strategy = TraMarkStrategy(
        strategy,
        model=model,
        vault=config["vault"],
        source=task.questions(dataset),
        warmup_rounds=config["warmup-rounds"],
    )
    strategy.start(grid, ArrayRecord(dict(model.state_dict())), num_rounds=config["num-server-rounds"])
