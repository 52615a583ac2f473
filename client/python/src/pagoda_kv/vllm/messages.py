"""What scheduler and workers tell each other, once a step each way.

Hashes are what the pages are known by: opaque bytes, made by the scheduler. Blocks are the
engine's block ids, `blocks_per_page` for each page; -1 stands for one that is not to be touched.
"""

from collections import Counter
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass
class Load:
    request_id: str
    scope: str
    hashes: list[bytes]
    block_ids: list[int]
    first_page: int
    between_steps: bool  # asynchronous: nothing of the step waits for it


@dataclass
class Save:
    request_id: str
    scope: str
    hashes: list[bytes]
    block_ids: list[int]
    first_page: int
    parent: bytes | None  # hash of the page before the first one


@dataclass
class StepMessage(KVConnectorMetadata):
    step: int = 0
    seen_through: int = 0  # the scheduler has the workers' answers up to this step
    failed_steps: list[int] = field(default_factory=list)  # of late, on any rank
    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)


@dataclass
class WorkerMessage(KVConnectorWorkerMetadata):
    step: int = 0
    failed: bool = False  # a load of this step failed: what the step computed is not to be kept
    loaded: Counter = field(default_factory=Counter)  # request -> ranks that are done with it
    disabled: bool = False  # this rank's cache is not one that can be loaded
    failed_loads: set[str] = field(default_factory=set)  # requests
    unsaved: dict[str, list[bytes]] = field(default_factory=dict)  # request -> hashes
    stored: Counter = field(default_factory=Counter)  # hash -> ranks whose part is stored

    def is_empty(self) -> bool:
        return not (
            self.failed
            or self.disabled
            or self.loaded
            or self.failed_loads
            or self.unsaved
            or self.stored
        )

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "WorkerMessage":
        assert isinstance(other, WorkerMessage)
        unsaved = {request: list(hashes) for request, hashes in self.unsaved.items()}
        for request, hashes in other.unsaved.items():
            unsaved.setdefault(request, []).extend(hashes)
        return WorkerMessage(
            step=max(self.step, other.step),
            failed=self.failed or other.failed,
            disabled=self.disabled or other.disabled,
            loaded=self.loaded + other.loaded,
            failed_loads=self.failed_loads | other.failed_loads,
            unsaved=unsaved,
            stored=self.stored + other.stored,
        )
