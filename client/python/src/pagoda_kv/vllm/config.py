"""What `kv_connector_extra_config` may say. Unknown keys and wrong values are refused by name.

Limits   every wait has one: a step of the scheduler, a lookup, pages on their way up from SSD,
         a load, bytes of saves that the daemon has not answered.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

PRECISIONS = ("auto", "opaque", "raw16", "q8", "q4")


@dataclasses.dataclass(frozen=True)
class TargetConfig:
    """Where the daemon is, and who asks."""

    target: str = "127.0.0.1:7070"  # HOST:PORT or unix:PATH
    token: str = ""
    token_file: str = ""  # read at start, so that the token is in no command line
    shm_socket: str = ""  # "none": everything goes over gRPC
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    insecure: bool = False

    def client_arguments(self) -> dict[str, Any]:
        arguments = dataclasses.asdict(self)
        file = arguments.pop("token_file")
        if file:
            with open(file, encoding="utf-8") as stream:
                arguments["token"] = stream.read().strip()
        return arguments


@dataclasses.dataclass(frozen=True)
class ConnectorConfig:
    target: TargetConfig = TargetConfig()
    # Who shares: "private" (this tenant), "group:NAME" or "public". salt_scopes gives requests
    # whose cache_salt begins with a key of it another scope; the longest key counts. The salt
    # itself is in vLLM's block hash in any case.
    scope: str = "private"
    salt_scopes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Names of the model for the identity, where the engine's own would not do.
    model: str = ""
    weights_revision: str = ""
    # auto: raw16 for layouts that we know, whole blocks as they are (opaque) for all others.
    # q8, q4: known layouts only; pages of this precision or better are hits.
    precision: str = "auto"
    # Loads between steps instead of in front of a step. Worth it where compute and copies do not
    # use the same cores.
    async_load: bool = False
    # Loads and saves inside the attention layers. Off: before and after the forward pass.
    layerwise: bool = True
    lookup_wait_ms: float = 2.0  # of a scheduler step, all requests together
    lookup_deadline_ms: float = 50.0  # of one question; an answer that comes later is a miss
    load_wait_ms: float = 500.0  # for pages on their way up from SSD
    load_deadline_ms: float = 2000.0  # of a load, after that its blocks are computed
    save_bytes_max: int = 256 << 20  # given to the daemon and not answered
    copy_threads: int = 1
    allow_fail_policy: bool = False

    @classmethod
    def parse(cls, extra: Mapping[str, Any]) -> "ConnectorConfig":
        own = {field.name: field for field in dataclasses.fields(cls) if field.name != "target"}
        own["target"] = dataclasses.fields(TargetConfig)[0]
        where = {field.name: field for field in dataclasses.fields(TargetConfig)}
        values: dict[str, Any] = {}
        target: dict[str, Any] = {}
        for key, value in extra.items():
            name = key.removeprefix("pagoda.")
            known = where.get(name) or own.get(name)
            if known is None:
                raise ValueError(_unknown(key, sorted({*own, *where})))
            (target if name in where else values)[name] = _checked(name, value, known.default)
        config = cls(target=TargetConfig(**target), **values)
        config._validate()
        return config

    def _validate(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"precision is {self.precision!r}: give one of {', '.join(PRECISIONS)}"
            )
        for scope in (self.scope, *self.salt_scopes.values()):
            kind, colon, name = scope.partition(":")
            if scope not in ("private", "public") and not (kind == "group" and colon and name):
                raise ValueError(f"scope is {scope!r}: give private, public or group:NAME")
        for name in ("lookup_deadline_ms", "load_wait_ms", "load_deadline_ms", "save_bytes_max"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give more than 0")
        if self.lookup_wait_ms < 0:
            raise ValueError(f"lookup_wait_ms is {self.lookup_wait_ms}: give 0 or more")
        if not 1 <= self.copy_threads <= 64:
            raise ValueError(f"copy_threads is {self.copy_threads}: give 1 to 64")

    def scope_of(self, cache_salt: str | None) -> str:
        best = max(
            (prefix for prefix in self.salt_scopes if (cache_salt or "").startswith(prefix)),
            key=len,
            default=None,
        )
        return self.scope if best is None or not cache_salt else self.salt_scopes[best]


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return f"kv_connector_extra_config has no option {key!r}: {hint}"


def _checked(name: str, value: Any, default: Any) -> Any:
    if name == "salt_scopes":
        if isinstance(value, Mapping) and all(
            isinstance(item, str) for pair in value.items() for item in pair
        ):
            return dict(value)
        raise ValueError(f"salt_scopes is {value!r}: give {{\"SALT PREFIX\": \"group:NAME\"}}")
    kind = type(default)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and number:
        return float(value)
    if kind is int and number and value == int(value):
        return int(value)
    if kind in (bool, str) and isinstance(value, kind):
        return value
    words = {bool: "true or false", str: "a text", int: "a whole number", float: "a number"}
    raise ValueError(f"{name} is {value!r}: give {words[kind]}")
