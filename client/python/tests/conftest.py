import zlib

import pages
import pytest
from pagodad_process import Pagodad


@pytest.fixture(scope="module")
def pagodad(tmp_path_factory):
    """One daemon for the tests of a file; each takes tokens of its own."""
    daemon = Pagodad(tmp_path_factory.mktemp("pagodad")).start()
    yield daemon
    daemon.stop()


@pytest.fixture
def own_pagodad(tmp_path):
    """A daemon that the test may kill."""
    daemon = Pagodad(tmp_path).start()
    yield daemon
    daemon.kill()


@pytest.fixture
def client(pagodad):
    one = pages.client(pagodad)
    yield one
    one.close()


@pytest.fixture(params=["shm", "grpc"])
def any_client(request, pagodad):
    """By shared memory, and over gRPC."""
    one = pages.client(pagodad, shm_socket="" if request.param == "shm" else "none")
    yield one
    one.close()


@pytest.fixture
def first_token(request):
    """Tokens that no other test uses."""
    return zlib.crc32(request.node.nodeid.encode()) % 1_000_000 * 1000
