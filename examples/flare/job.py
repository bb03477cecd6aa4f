"""The job: FedAvg, in which every site's model can be traced."""

from pathlib import Path

from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_opt.pt.job_config.base_fed_job import BaseFedJob
from nvflare.app_opt.pt.job_config.model import PTModel
from nvflare.job_config.script_runner import ScriptRunner

from deployments import MODEL
from tramark.integrations.nvflare import add_tramark
from tramark.lab.data import Dataset

CLIENT = Path(__file__).parent / "client.py"


def make_job(
    dataset: Dataset, *, sites: int, rounds: int, warmup_rounds: int, vault: Path, keep: Path, train_args: str = ""
) -> BaseFedJob:
    """FedAvg over all sites; two of them are enough to go on."""
    job = BaseFedJob(name="traced", min_clients=2, key_metric="loss", key_metric_mode="min")
    model = {"name": MODEL, "input_shape": list(dataset.input_shape), "classes": dataset.classes, "seed": 0}
    job.to_server(PTModel({"path": "tramark.lab.models.build", "args": model}))
    job.to_server(FedAvg(num_clients=sites, num_rounds=rounds))
    # How long a site that does not answer is waited for, in seconds, once the server has noticed.
    job.to_server({"dead_client_grace_period": 10, "dead_client_check_lead_time": 10})
    words = f"--model {MODEL} --data {dataset.name} --sites {sites} --keep {keep} {train_args}"
    job.to_clients(ScriptRunner(script=str(CLIENT), script_args=words))
    add_tramark(
        job,
        vault=vault,
        input_shape=dataset.input_shape,
        normalise=(dataset.mean or 0.0, dataset.std or 1.0),
        warmup_rounds=warmup_rounds,
    )
    return job
