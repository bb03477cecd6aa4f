"""The FLARE component, with FLARE's own contexts and messages; and in its simulator, with another workflow."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install tramark[nvflare]")

from nvflare.apis.client import Client
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode, ServerCommandKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import InTimeAccumulateWeightedAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.app_opt.pt.job_config.base_fed_job import BaseFedJob
from nvflare.app_opt.pt.job_config.model import PTModel
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.job_config.script_runner import ScriptRunner
from nvflare.recipe.sim_env import SimEnv

from deployments import finished, issued, named
from tramark import trace
from tramark.integrations.nvflare import TraMarkServer, add_tramark
from tramark.vault.store import Vault

SITES = ["site-0", "site-1", "site-2"]
Params = dict[str, Any]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))


def arrays(model: nn.Module) -> Params:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def trained(params: Params, seed: int) -> dict[str, Tensor]:
    """A few steps on a site's own data."""
    model = net()
    model.load_state_dict({name: torch.as_tensor(array) for name, array in params.items()})
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(32, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (32,), generator=generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    return model.state_dict()


class Job:
    """A workflow with its sites, in this process: it holds one model, and does what FLARE's runner does."""

    def __init__(self, vault: Path, *, sites: list[str] = SITES, rounds: int = 4, model: Any = None, **options: Any):
        settings: dict[str, Any] = {"input_shape": [1, 8, 8], "normalise": [0.5, 0.5], "warmup_rounds": 1, **options}
        self.component = TraMarkServer(str(vault), **settings)
        self.params: Params = arrays(net()) if model is None else model
        self.clients = {name: Client(name, f"token of {name}") for name in sites}
        self.tasks: dict[str, SimpleNamespace] = {}
        self.workflow = SimpleNamespace(start_round=0, num_rounds=rounds)
        self.workflow.communicator = SimpleNamespace(process_task_check=lambda task_id, fl_ctx: self.tasks.get(task_id))
        running = SimpleNamespace(controller=self.workflow)
        self.runner = SimpleNamespace(
            config=SimpleNamespace(workflows=[running]), current_wf_index=0, current_wf=running
        )
        self.persistor = SimpleNamespace(model=net())
        self.panics: list[str] = []
        self.contexts = FLContextManager(engine=self, identity_name="server", job_id="job")
        self.results: dict[str, tuple[str, Params]] = {}

    # What the component asks of FLARE's engine.
    def get_clients(self) -> list[Client]:
        return list(self.clients.values())

    def get_component(self, name: str) -> Any:
        return self.persistor if name == "persistor" else None

    def fire_event(self, event: str, fl_ctx: FLContext) -> None:
        if event == EventType.FATAL_SYSTEM_ERROR:
            self.panics.append(fl_ctx.get_prop(FLContextKey.EVENT_DATA))

    def context(self, **props: Any) -> FLContext:
        fl_ctx = self.contexts.new_context()
        for key, value in {FLContextKey.RUNNER: self.runner, **props}.items():
            fl_ctx.set_prop(key, value, private=True, sticky=False)
        return fl_ctx

    def tell(self, event: str, **props: Any) -> None:
        self.component.handle_event(event, self.context(**props))

    def model(self) -> dict[str, Any]:
        return {AppConstants.GLOBAL_MODEL: make_model_learnable(self.params, {})}

    def load(self) -> None:
        self.tell(AppEventType.INITIAL_MODEL_LOADED, **self.model())

    def send(self, site: str, params: Params | None = None, *, kind: str = DataKind.WEIGHTS) -> Shareable:
        """What leaves for a site that asks for its task."""
        number = f"task of {site}"
        task = SimpleNamespace(completion_status=None)
        self.tasks[number] = SimpleNamespace(client=self.clients[site], task=task, result_received_time=None)
        data = DXO(kind, data=self.params if params is None else params).to_shareable()
        self.tell(EventType.BEFORE_TASK_DATA_FILTER, **{FLContextKey.TASK_DATA: data, FLContextKey.TASK_ID: number})
        return data

    def receive(
        self, site: str, params: Any, *, kind: str = DataKind.WEIGHTS, task_of: str | None = None, steps: Any = 1
    ) -> Shareable:
        """What is left of a site's result for the workflow."""
        result = DXO(kind, data=params, meta={"NUM_STEPS_CURRENT_ROUND": steps}).to_shareable()
        result.set_header(ServerCommandKey.FL_CLIENT, self.clients[site])
        number = f"task of {task_of or site}"
        self.tell(
            EventType.AFTER_TASK_RESULT_FILTER, **{FLContextKey.TASK_RESULT: result, FLContextKey.TASK_ID: number}
        )
        return result

    def end(self, params: Params) -> None:
        """The workflow has a new model."""
        self.params = params
        self.tell(AppEventType.AFTER_SHAREABLE_TO_LEARNABLE, **self.model())
        self.tasks.clear()

    def round(self, *, difference: bool = False) -> dict[str, dict[str, Tensor]]:
        """One round of FedAvg; gives what each site has trained."""
        have, plain = {}, []
        for number, site in enumerate(self.clients):
            got = from_shareable(self.send(site)).data
            have[site] = trained(got, number)
            back = {name: tensor.numpy() for name, tensor in have[site].items()}
            kind = DataKind.WEIGHT_DIFF if difference else DataKind.WEIGHTS
            if difference:
                back = {name: array - got[name] for name, array in back.items()}
            plain.append(from_shareable(self.receive(site, back, kind=kind)).data)
        mean = {name: np.mean([update[name] for update in plain], axis=0) for name in self.params}
        self.end({name: self.params[name] + mean[name] for name in mean} if difference else mean)
        return have


def suspect(state: dict[str, Tensor]) -> nn.Module:
    model = net()
    model.load_state_dict(state)
    return model


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    return tmp_path / "vault"


@pytest.mark.parametrize("difference", [False, True], ids=["weights", "differences"])
def test_every_site_is_traced(vault: Path, difference: bool) -> None:
    job = Job(vault)
    job.load()
    for _ in range(4):
        have = job.round(difference=difference)
    assert job.panics == []
    job.tell(EventType.END_RUN)
    with Vault.open(vault, readonly=True) as opened:
        assert {site: trace(suspect(state), opened.keyring).clients for site, state in have.items()} == {
            site: (site,) for site in SITES
        }
        assert opened.audit() == []
    assert list(issued(vault)) == [(after, site) for after in range(4) for site in SITES]


def test_a_site_learns_nothing_from_the_form_of_what_it_gets(vault: Path) -> None:
    job = Job(vault)
    job.load()
    first = {site: from_shareable(job.send(site)).data for site in SITES}
    for params in first.values():
        assert all(np.array_equal(params[name], job.params[name]) for name in job.params)
    job.round()
    own = {site: from_shareable(job.send(site)) for site in SITES}
    for dxo in own.values():
        assert dxo.data_kind == DataKind.WEIGHTS
        assert list(dxo.data) == list(job.params)
        assert {(type(a), a.dtype, a.shape) for a in dxo.data.values()} == {
            (type(a), a.dtype, a.shape) for a in job.params.values()
        }
    assert not np.array_equal(own["site-0"].data["3.weight"], own["site-1"].data["3.weight"])


@pytest.mark.parametrize("difference", [False, True], ids=["weights", "differences"])
def test_the_workflow_sees_updates_without_marks(vault: Path, difference: bool) -> None:
    job = Job(vault)
    job.load()
    job.round()
    got = from_shareable(job.send("site-0")).data
    back = {name: array + 0.25 for name, array in got.items()}
    if difference:
        back = {name: np.full_like(array, 0.25) for name, array in got.items()}
    kind = DataKind.WEIGHT_DIFF if difference else DataKind.WEIGHTS
    seen = from_shareable(job.receive("site-0", back, kind=kind)).data
    expected = {name: (0.0 if difference else job.params[name]) + 0.25 for name in job.params}
    for name, array in seen.items():
        assert np.allclose(array, expected[name], atol=1e-6)


def test_tensors_stay_tensors(vault: Path) -> None:
    job = Job(vault, model=dict(net().state_dict()))
    job.load()
    sent = from_shareable(job.send("site-0")).data
    assert all(isinstance(value, Tensor) for value in sent.values())
    seen = from_shareable(job.receive("site-0", trained(sent, 0))).data
    assert all(isinstance(value, Tensor) for value in seen.values())


HOSTILE: dict[str, tuple[Any, str, Any]] = {
    "not finite": ({"1.weight": np.full((64, 64), np.nan, np.float32)}, DataKind.WEIGHTS, 1),
    "another shape": ({"1.weight": np.zeros((3, 3), np.float32)}, DataKind.WEIGHTS, 1),
    "another shape of a difference": ({"1.weight": np.zeros((1, 1), np.float32)}, DataKind.WEIGHT_DIFF, 1),
    "an unknown name": ({"extra": np.zeros(3, np.float32)}, DataKind.WEIGHTS, 1),
    "no array": ({"1.weight": "words"}, DataKind.WEIGHTS, 1),
    "objects": ({"1.weight": np.array([None])}, DataKind.WEIGHTS, 1),
    "no positive weight": ({}, DataKind.WEIGHTS, -1),
    "an endless weight": ({}, DataKind.WEIGHTS, float("inf")),
    "a weight in words": ({}, DataKind.WEIGHTS, "many"),
    "a collection": ({}, DataKind.COLLECTION, 1),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_an_update_that_cannot_be_used_is_left_out_and_the_round_goes_on(vault: Path, case: str) -> None:
    change, kind, steps = HOSTILE[case]
    job = Job(vault)
    job.load()
    job.round()
    kept = [from_shareable(job.receive(s, trained(from_shareable(job.send(s)).data, 0))).data for s in SITES[:2]]
    sent = from_shareable(job.send("site-2")).data
    assert from_shareable(job.receive("site-2", {**sent, **change}, kind=kind, steps=steps)).data == {}
    mean = {name: np.mean([np.asarray(update[name]) for update in kept], axis=0) for name in job.params}
    job.end(mean)
    assert job.panics == []
    assert all(np.isfinite(array).all() for array in job.params.values())
    with Vault.open(vault, readonly=True) as opened:
        assert list(opened.reports()[-1]["used"]) == SITES[:2]
        assert set(opened.reports()[-1]["refused"]) == {"site-2"}


def test_a_round_without_any_usable_update_leaves_the_base_as_it_is(vault: Path) -> None:
    job = Job(vault)
    job.load()
    job.round()
    before = dict(job.params)
    for site in SITES:
        job.send(site)
        job.receive(site, {name: array * np.nan for name, array in before.items()})
    with pytest.warns(UserWarning, match="no update could be used"):
        job.end({})
    assert job.panics == []
    assert all(np.array_equal(job.params[name], before[name]) for name in before)


def test_results_of_nobodys_task_are_ignored(vault: Path) -> None:
    job = Job(vault)
    job.load()
    sent = from_shareable(job.send("site-0")).data
    job.send("site-1")
    for result in (
        job.receive("site-1", dict(sent), task_of="site-0"),  # another site's task
        job.receive("site-2", dict(sent)),  # a task that was never sent
    ):
        assert result.get_return_code() == ReturnCode.TASK_UNKNOWN
    job.tasks["task of site-1"].task.completion_status = "done"
    assert job.receive("site-1", dict(sent)).get_return_code() == ReturnCode.TASK_UNKNOWN
    job.end({name: array + 1 for name, array in job.params.items()})
    with Vault.open(vault, readonly=True) as opened:
        assert list(opened.reports()[-1]["used"]) == []


def test_a_name_that_a_site_claims_does_not_count(vault: Path) -> None:
    job = Job(vault)
    job.load()
    job.round()
    honest = from_shareable(job.send("site-0")).data
    liar = FLContext()
    liar.set_prop("__identity_name__", "site-1", private=False, sticky=False)
    context, job.context = job.context, lambda **props: _with_peer(context(**props), liar)  # type: ignore[method-assign]
    again = from_shareable(job.send("site-0")).data
    assert all(np.array_equal(again[name], honest[name]) for name in honest)


def _with_peer(fl_ctx: FLContext, peer: FLContext) -> FLContext:
    fl_ctx.set_peer_context(peer)
    return fl_ctx


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF, DataKind.COLLECTION])
def test_a_model_that_is_not_the_base_never_leaves(vault: Path, kind: str) -> None:
    job = Job(vault)
    job.load()
    job.round()
    data = job.send("site-0", {name: array + 1 for name, array in job.params.items()}, kind=kind)
    assert len(job.panics) == 1
    assert "tramark: " in job.panics[0]
    assert not data
    assert not job.send("site-1")  # and nothing after it


def test_other_messages_pass(vault: Path) -> None:
    job = Job(vault)
    job.load()
    assert from_shareable(job.send("site-0", {"accuracy": 0.5}, kind=DataKind.METRICS)).data == {"accuracy": 0.5}
    assert from_shareable(job.receive("site-0", {"accuracy": 0.5}, kind=DataKind.METRICS)).data == {"accuracy": 0.5}
    plain = Shareable()
    job.tell(EventType.BEFORE_TASK_DATA_FILTER, **{FLContextKey.TASK_DATA: plain})
    assert job.panics == []


def test_a_job_goes_on_where_the_vault_ends(vault: Path) -> None:
    job = Job(vault, rounds=5)
    job.load()
    for _ in range(3):
        job.round()
    reached = dict(job.params)
    job.send("site-0")  # it dies in the middle of a round
    job.tell(EventType.END_RUN)

    again = Job(vault, rounds=5, sites=[*SITES, "site-3"])
    again.load()
    assert all(np.array_equal(again.params[name], reached[name]) for name in reached)
    assert (again.workflow.start_round, again.workflow.num_rounds) == (3, 2)
    again.round()
    have = again.round()
    assert again.panics == []
    again.tell(EventType.END_RUN)
    with Vault.open(vault, readonly=True) as opened:
        assert (opened.saved() or {})["round"] == 5
        for site, state in have.items():
            assert trace(suspect(state), opened.keyring).clients == (site,)

    done = Job(vault, rounds=5)
    done.load()
    assert done.workflow.num_rounds == 0


def test_a_workflow_that_would_begin_anew_is_stopped(vault: Path) -> None:
    job = Job(vault)
    job.load()
    job.round()
    job.tell(EventType.END_RUN)
    silent = Job(vault)  # it does not say that its model was loaded
    assert not silent.send("site-0")
    assert "not the base of this federation" in silent.panics[0]


def test_settings_that_cannot_work_end_the_job(vault: Path) -> None:
    for options, said in (
        ({"warmup_rounds": 9}, "9"),
        ({"model_id": "elsewhere"}, "holds no nn.Module"),
        ({"model": {"unknown": np.zeros(3, np.float32)}}, "'unknown'"),
    ):
        job = Job(vault, **options)
        job.load()
        assert len(job.panics) == 1
        assert said in job.panics[0]
        assert not job.send("site-0")


def test_only_the_servers_part_of_a_job_knows_of_tramark(tmp_path: Path) -> None:
    job = BaseFedJob(name="traced", min_clients=2)
    job.to_server(PTModel({"path": "torch.nn.Linear", "args": {"in_features": 4, "out_features": 3}}))
    job.to_server(FedAvg(num_clients=2, num_rounds=3))
    script = tmp_path / "train_script.py"
    script.write_text("import nvflare.client\n")
    job.to_clients(ScriptRunner(script=str(script)))
    add_tramark(job, vault="/srv/vault", input_shape=(4,), warmup_rounds=1, travels=["weight"])
    job.export_job(str(tmp_path / "jobs"))
    root = tmp_path / "jobs" / "traced"
    (server,) = root.rglob("config_fed_server.json")
    (found,) = [c for c in json.loads(server.read_text())["components"] if c["id"] == "tramark"]
    assert found["path"] == "tramark.integrations.nvflare.component.TraMarkServer"
    assert found["args"] == {"vault": "/srv/vault", "input_shape": [4], "warmup_rounds": 1, "travels": ["weight"]}
    assert not [path for path in root.rglob("*") if path.name.startswith("tramark")]
    for client in root.rglob("config_fed_client.json"):
        assert "tramark" not in client.read_text()


def test_a_recipe_takes_it_too(tmp_path: Path) -> None:
    script = tmp_path / "train_script.py"
    script.write_text("import nvflare.client\n")
    model = {"class_path": "torch.nn.Linear", "args": {"in_features": 4, "out_features": 3}}
    recipe = FedAvgRecipe(model=model, min_clients=2, num_rounds=3, train_script=str(script))
    add_tramark(recipe, vault="/srv/vault", input_shape=(4,))
    recipe.export(str(tmp_path / "jobs"))
    (server,) = (tmp_path / "jobs").rglob("config_fed_server.json")
    found = {component["id"]: component["args"] for component in json.loads(server.read_text())["components"]}
    assert found["tramark"] == {"vault": "/srv/vault", "input_shape": [4]}
    assert "persistor" in found


@pytest.mark.slow
def test_another_workflow_in_the_simulator(tmp_path: Path) -> None:
    client = Path(__file__).parents[2] / "examples" / "flare" / "client.py"
    vault, kept = tmp_path / "vault", tmp_path / "kept"

    def run(rounds: int) -> None:
        job = BaseFedJob(name="gathered", min_clients=2)
        build = {"name": "cnn", "input_shape": [1, 8, 8], "classes": 10, "seed": 0}
        ids = job.to_server(PTModel({"path": "tramark.lab.models.build", "args": build}))
        job.to_server(FullModelShareableGenerator(), id="generator")
        job.to_server(InTimeAccumulateWeightedAggregator(expected_data_kind=DataKind.WEIGHTS), id="aggregator")
        job.to_server(
            ScatterAndGather(
                min_clients=2,
                num_rounds=rounds,
                aggregator_id="aggregator",
                shareable_generator_id="generator",
                persistor_id=ids["persistor_id"],
            )
        )
        words = f"--model cnn --data digits --sites 2 --samples 120 --epochs 2 --keep {kept}"
        job.to_clients(ScriptRunner(script=str(client), script_args=words))
        add_tramark(job, vault=vault, input_shape=(1, 8, 8), normalise=(0.0, 1.0), warmup_rounds=1)
        SimEnv(clients=SITES[:2], num_threads=2, workspace_root=str(tmp_path / "simulator")).deploy(job)

    run(2)
    assert finished(vault) == 2
    run(4)
    assert finished(vault) == 4
    assert {site: named(vault, kept / f"{site}.safetensors") for site in SITES[:2]} == {
        site: (site,) for site in SITES[:2]
    }
    assert sorted(issued(vault)) == [(after, site) for after in range(4) for site in SITES[:2]]
