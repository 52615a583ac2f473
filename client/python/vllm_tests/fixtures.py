"""What the tests here share: the package without its extension, vLLM's names, engines."""

import pathlib
import sys
import types

import fake_core
import pytest
import stand_ins

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "src"

try:
    import pagoda_kv  # noqa: F401
except ImportError:
    package = types.ModuleType("pagoda_kv")
    package.__path__ = [str(SOURCE / "pagoda_kv")]
    sys.modules["pagoda_kv"] = package

stand_ins.install()

from mini_engine import MiniEngine  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402

from pagoda_kv.vllm import connector as connector_module  # noqa: E402
from pagoda_kv.vllm import guard  # noqa: E402


@pytest.fixture
def daemon(monkeypatch):
    fake_core._daemons.clear()
    guard._seen.clear()
    monkeypatch.setattr(connector_module, "load_core", lambda: fake_core)
    return fake_core.daemon()


@pytest.fixture
def engine(daemon):
    """Makes engines on the daemon, and closes them."""
    made = []

    def make(extra=None, **arguments):
        one = MiniEngine(
            connector_module.PagodaConnector, KVConnectorRole, extra, **arguments
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def roots(one):
    """Of every scope that a test uses."""
    client = one.scheduler._client
    return [client.scope(name).root for name in ("private", "public", "group:a", "group:b")]
