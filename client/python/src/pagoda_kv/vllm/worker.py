"""A worker's side: loads what the scheduler planned into this rank's cache, saves what it named.

One step   begin(message) -> [start_loads] -> wait_layer, save_layer for each layer -> [start_loads
           where nothing of the step needed it] -> end_step -> finished_loads -> take_failed_blocks
           -> answer()
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from pagoda_kv.vllm.config import ConnectorConfig
from pagoda_kv.vllm.copier import HostCopier
from pagoda_kv.vllm.guard import log_once
from pagoda_kv.vllm.layout import describe
from pagoda_kv.vllm.loader import Loader, LoadJob
from pagoda_kv.vllm.messages import StepMessage, WorkerMessage
from pagoda_kv.vllm.plan import CachePlan, Unsupported
from pagoda_kv.vllm.saver import Saver


def _raise(method: str, error: Exception) -> None:
    raise error


class WorkerSide:
    def __init__(
        self,
        core: Any,
        client: Any,
        plan: CachePlan,
        config: ConnectorConfig,
        *,
        count: Callable[..., None] = lambda name, amount=1: None,
    ) -> None:
        self._core = core
        self._client = client
        self._plan = plan
        self._config = config
        self._count = count
        self._layer_index = {name: index for index, name in enumerate(plan.layer_names)}
        self._copier: Any = None
        self._loader: Loader | None = None
        self._saver: Saver | None = None
        self._message = StepMessage()
        self._step_job: LoadJob | None = None
        self._jobs: list[LoadJob] = []  # between steps
        self._started = True
        self._failed_blocks: set[int] = set()
        self._answer = WorkerMessage()

    def register(self, tensors: Mapping[str, Any], block_count: int) -> None:
        try:
            layout = describe(self._plan, tensors, block_count)
            device = next(iter(tensors.values())).device.type
            heads = range(layout.head_count)
            if device == "cpu":
                copier: Any = HostCopier(self._core, layout, heads, self._config.copy_threads)
            else:
                from pagoda_kv.vllm.device_copier import DeviceCopier

                copier = DeviceCopier(self._core, self._plan, layout, tensors)
        except Unsupported as error:
            log_once("register_kv_caches", "unsupported", "nothing is loaded or saved: %s", error)
            return
        self._copier = copier
        shared = (self._core, self._client, self._plan, self._config, copier, self._count)
        self._loader = Loader(*shared)
        if self._plan.rank_pushes:
            self._saver = Saver(*shared)

    # A step --------------------------------------------------------------------------------------

    def begin(
        self, message: StepMessage, on_error: Callable[[str, Exception], None] = _raise
    ) -> None:
        self._message = message
        self._started = False
        self._step_job = None
        self._answer = WorkerMessage(step=message.step)
        if self._copier is not None:
            self._copier.begin_step()
        if self._saver is not None:
            try:
                self._saver.begin_step(message)
            except Exception as error:
                on_error("bind_connector_metadata", error)

    def start_loads(self) -> None:
        """Before the forward pass or, where it needs nothing of them, after it; once a step."""
        if self._started:
            return
        self._started = True
        in_step = [load for load in self._message.loads if not load.between_steps]
        if self._loader is None:
            self._answer.disabled = bool(self._message.loads)
            self._answer.failed = bool(in_step)
            for load in self._message.loads:
                job = LoadJob([load], 0, 0.0)
                job.fail_all()
                job.finish()
                self._jobs.append(job)
            return
        if in_step:
            self._step_job = self._loader.start(in_step)
            if not self._config.layerwise:
                self._wait(lambda job: job.wait_done())
        for load in self._message.loads:
            if load.between_steps:
                self._jobs.append(self._loader.start([load]))

    def wait_layer(self, name: str) -> None:
        if self._step_job is None or name not in self._layer_index:
            return
        self._wait(lambda job: job.wait_layer(self._layer_index[name]))

    def save_layer(self, name: str) -> None:
        if self._saver is None or not self._message.saves or not self._config.layerwise:
            return
        if name in self._layer_index:
            self._saver.save_layer(self._message, self._layer_index[name])

    def end_step(self, on_error: Callable[[str, Exception], None] = _raise) -> None:
        """After the forward pass; the blocks may be written over when this returns."""
        failed = False
        if self._step_job is not None:
            self._wait(lambda job: job.wait_done())
            failed = bool(self._step_job.failed_blocks)
            self._take(self._step_job)
            self._step_job = None
        self._answer.failed |= failed
        if self._saver is not None:
            try:
                self._saver.end_step(self._message, failed)
            except Exception as error:
                on_error("wait_for_save", error)

    def finished_loads(self) -> set[str]:
        """Requests whose load between steps is over, well or not."""
        self.start_loads()
        finished: set[str] = set()
        running: list[LoadJob] = []
        now = time.monotonic()
        for job in self._jobs:
            if not job.done and now >= job.deadline:
                job.cancel()
                self._count("load_failures:deadline")
            # Asked once: a job that ends meanwhile is reported in the next step.
            if not job.done:
                running.append(job)
                continue
            self._take(job)
            finished.update(load.request_id for load in job.loads if load.between_steps)
        self._jobs = running
        return finished

    def take_failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def answer(self) -> WorkerMessage | None:
        answer, self._answer = self._answer, WorkerMessage(step=self._message.step)
        if self._saver is not None:
            answer.unsaved = self._saver.take_unsaved()
            answer.stored.update(self._saver.take_stored())
        return None if answer.is_empty() and self._plan.tp_size == 1 else answer

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()
        if self._saver is not None:
            self._saver.close()

    # Inside --------------------------------------------------------------------------------------

    def _wait(self, wait: Callable[[LoadJob], bool]) -> None:
        job = self._step_job
        if job is None or job.done and not job.failed_blocks:
            return
        began = time.monotonic()
        if not wait(job) and not job.done:
            job.cancel()
            self._count("load_failures:deadline")
        self._copier.order_loads()
        self._count("load_wait_seconds", time.monotonic() - began)

    def _take(self, job: LoadJob) -> None:
        self._failed_blocks |= job.failed_blocks
        self._answer.failed_loads |= job.failed_requests
        self._answer.loaded.update(load.request_id for load in job.loads)
