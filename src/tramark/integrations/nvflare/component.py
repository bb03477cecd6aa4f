"""The server component: it follows FLARE's events, marks what leaves and unmarks what comes back.

Marks are put on before the job's other filters see a task, and taken off after they have seen its result, so that
filters that compress or encode models work as they did.
"""

import copy
from pathlib import Path
from threading import RLock
from typing import Any

from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.dxo import DataKind, MetaKey
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReturnCode, ServerCommandKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.private.fed.simulator.simulator_server import SimulatorServerEngine
from torch import nn

from tramark.errors import SettingError, TramarkError
from tramark.fleet.travels import travelling
from tramark.integrations.nvflare.exchange import Exchange, Params
from tramark.integrations.nvflare.weights import dxo_in, state_of
from tramark.integrations.vaults import open_or_make, outputs_of
from tramark.server import TraMark
from tramark.vault.store import Vault

MODELS = (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF, DataKind.FL_MODEL, DataKind.COLLECTION)
"""The kinds of data that are models, or may hold some."""

UPDATES = (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF)


class TraMarkServer(FLComponent):
    """A FLARE server component with which every site gets its own marked model.

    Parameters
    ----------
    vault : where the vault is at the server, or is to be made. An existing one is gone on with.
    input_shape, normalise, classes, questions : what a new vault's keyring is made for; see `Keyring.generate`. Without
        `classes` it is the number of outputs of the model's last linear layer.
    warmup_rounds, preset, logits, travels : as for `TraMark`. The number of rounds is learnt from the workflow.
    model_id : the component that holds the model: a persistor of PyTorch models, or an `nn.Module`.
    """

    def __init__(
        self,
        vault: str,
        input_shape: list[int] | None = None,
        normalise: Any = None,
        classes: int | None = None,
        questions: int | None = None,
        warmup_rounds: Any = "auto",
        preset: str = "default",
        logits: str | int | None = None,
        travels: str | list[str] | None = None,
        model_id: str = "persistor",
    ) -> None:
        # FLARE writes a job's components down by their arguments, and finds these under the same names.
        super().__init__()
        self.vault = vault
        self.input_shape = input_shape
        self.normalise = normalise
        self.classes = classes
        self.questions = questions
        self.warmup_rounds = warmup_rounds
        self.preset = preset
        self.logits = logits
        self.travels = travels
        self.model_id = model_id
        self._opened: Vault | None = None
        self._exchange: Exchange | None = None
        self._broken = False
        # Sites ask for tasks and return results in threads of their own; a panic is an event, too.
        self._lock = RLock()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Do a round's work when FLARE says that it is time; a failure ends the job."""
        act = {
            AppEventType.INITIAL_MODEL_LOADED: self._load,
            EventType.BEFORE_TASK_DATA_FILTER: self._send,
            EventType.AFTER_TASK_RESULT_FILTER: self._receive,
            AppEventType.AFTER_SHAREABLE_TO_LEARNABLE: self._end_round,
            EventType.END_RUN: self._close,
        }.get(event_type)
        if act is None:
            return
        with self._lock:
            try:
                act(fl_ctx)
            except Exception as error:
                # FLARE logs what a component raises, and goes on: nothing unmarked may leave then.
                self._broken = True
                if event_type == EventType.BEFORE_TASK_DATA_FILTER:
                    fl_ctx.get_prop(FLContextKey.TASK_DATA).clear()
                known = isinstance(error, TramarkError)
                if not known:
                    self.log_exception(fl_ctx, "tramark has failed")
                self.system_panic(f"tramark: {error if known else type(error).__name__}", fl_ctx)

    def _load(self, fl_ctx: FLContext) -> None:
        """Begin with the workflow's first model; with the vault's, if that holds a training."""
        params = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS]
        if self._exchange is None and params:
            self._begin(params, fl_ctx)
            self._ready.give_back(params)

    def _send(self, fl_ctx: FLContext) -> None:
        data: Shareable = fl_ctx.get_prop(FLContextKey.TASK_DATA)
        dxo = dxo_in(data)
        if dxo is None or dxo.data_kind not in MODELS:
            return
        if self._broken:
            raise SettingError("an earlier failure: nothing is sent any more")
        if dxo.data_kind != DataKind.WEIGHTS:
            raise SettingError(
                f"a task sends a model as {DataKind(dxo.data_kind).value}, which cannot be marked: send WEIGHTS"
            )
        task = self._standing(fl_ctx)
        if task is None:
            raise SettingError("a task that the workflow does not know is about to be sent")
        if self._exchange is None:
            self._begin(dxo.data, fl_ctx)
        dxo.data = self._ready.personal(task.client.name, dxo.data)
        dxo.update_shareable(data)

    def _receive(self, fl_ctx: FLContext) -> None:
        result: Shareable = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
        dxo = dxo_in(result) if result.get_return_code(ReturnCode.OK) == ReturnCode.OK else None
        if dxo is None or dxo.data_kind not in MODELS or self._exchange is None:
            return
        sender = result.get_header(ServerCommandKey.FL_CLIENT)
        task = self._standing(fl_ctx)
        if task is None or sender is None or task.client.name != sender.name:
            self.log_warning(fl_ctx, "a result that nobody waits for is ignored")
            result.pop("DXO")
            result.set_return_code(ReturnCode.TASK_UNKNOWN)
            return
        client = sender.name
        if dxo.data_kind in UPDATES:
            difference = dxo.data_kind == DataKind.WEIGHT_DIFF
            weight = dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)
            dxo.data = self._exchange.take(client, dxo.data, difference=difference, weight=weight)
        else:
            self._exchange.refuse(client, f"{DataKind(dxo.data_kind).value} instead of weights")
            dxo.data_kind, dxo.data = DataKind.WEIGHTS, {}
        # A workflow leaves an empty result out, where it may end the job for a failed one.
        dxo.update_shareable(result)

    def _end_round(self, fl_ctx: FLContext) -> None:
        if self._exchange is None:
            return
        params = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS]
        report = self._exchange.end(params)
        self.log_info(fl_ctx, str(report))
        for client, reason in report.refused.items():
            self.log_warning(fl_ctx, f"update of client {client!r} refused: {reason}")

    def _close(self, fl_ctx: FLContext) -> None:
        if self._exchange is None or not self._exchange.server.marked:
            self.log_warning(fl_ctx, "no round was marked: nothing that clients hold now can be traced to them")
        self._exchange = None
        if self._opened is not None:
            self._opened.close()

    def _begin(self, params: Params, fl_ctx: FLContext) -> None:
        """Open the vault, or make it for the job's sites, and go on where it ends."""
        model, travels = self._model(fl_ctx), self.travels
        if unknown := params.keys() - model.state_dict().keys():
            raise SettingError(f"the workflow's model has {min(unknown)!r}, which {type(model).__name__} has not")
        if travels is None and params.keys() < model.state_dict().keys():
            travels = list(params)
        model.load_state_dict({**model.state_dict(), **state_of(params)})
        clients = sorted(client.name for client in fl_ctx.get_engine().get_clients())
        new = {
            "input_shape": _tuple(self.input_shape),
            "normalise": _tuple(self.normalise),
            "classes": self.classes or outputs_of(model),
            "questions": self.questions,
        }
        self._opened = open_or_make(Path(self.vault), clients, new, warn=lambda line: self.log_warning(fl_ctx, line))
        server = TraMark(
            model,
            vault=self._opened,
            warmup_rounds=self.warmup_rounds,
            preset=self.preset,
            logits=self.logits,
            travels=None if travels is None else travelling(model, travels),
        )
        if server.resume():
            self.log_info(fl_ctx, f"the vault holds {server.round} finished rounds: going on with the next")
        self._plan(server, fl_ctx)
        if joined := [client for client in clients if client not in server.fleet]:
            self.log_info(fl_ctx, f"new clients: {', '.join(joined)}")
            server.join(*joined)
        if not fl_ctx.get_prop(FLContextKey.SECURE_MODE) and not isinstance(fl_ctx.get_engine(), SimulatorServerEngine):
            self.log_warning(
                fl_ctx,
                "this server does not check certificates: sites say themselves who they are. A mark accuses a name, "
                "and here anybody could have taken it.",
            )
        self._exchange = Exchange(server, params)

    def _plan(self, server: TraMark, fl_ctx: FLContext) -> None:
        """Let the workflow end after its number of rounds in all, those in the vault included."""
        runner = fl_ctx.get_prop(FLContextKey.RUNNER)
        workflow = runner.config.workflows[runner.current_wf_index].controller
        for start, number in (("start_round", "num_rounds"), ("_start_round", "_num_rounds")):
            if hasattr(workflow, start) and hasattr(workflow, number):
                rounds = getattr(workflow, start) + getattr(workflow, number)
                if rounds > server.round:
                    server.expect(rounds)
                setattr(workflow, start, max(getattr(workflow, start), server.round))
                setattr(workflow, number, max(0, rounds - getattr(workflow, start)))
                return

    def _model(self, fl_ctx: FLContext) -> nn.Module:
        found = fl_ctx.get_engine().get_component(self.model_id)
        model = found if isinstance(found, nn.Module) else getattr(found, "model", None)
        if not isinstance(model, nn.Module):
            raise SettingError(f"component {self.model_id!r} holds no nn.Module: name one that does by model_id=…")
        return copy.deepcopy(model)

    @staticmethod
    def _standing(fl_ctx: FLContext) -> "ClientTask | None":
        """The task of the current message, if its result is still waited for; its client is who the server says."""
        runner = fl_ctx.get_prop(FLContextKey.RUNNER)
        number = fl_ctx.get_prop(FLContextKey.TASK_ID)
        found = runner.current_wf.controller.communicator.process_task_check(task_id=number, fl_ctx=fl_ctx)
        if found is None or found.task.completion_status is not None or found.result_received_time is not None:
            return None
        return found

    @property
    def _ready(self) -> Exchange:
        assert self._exchange is not None
        return self._exchange


def _tuple(value: Any) -> Any:
    """Lists, which JSON has, as tuples."""
    return tuple(_tuple(item) for item in value) if isinstance(value, list | tuple) else value
