"""The processes of transport.py: servers and clients that end with it, whatever happens."""

import contextlib
import ctypes
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import time
from typing import Any

CLIENT = pathlib.Path(__file__).resolve().with_name("transport_client.py")
STOP_SECONDS_MAX = 5
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
# Nothing leaves the machine, nothing asks a GPU, nothing logs each request.
ENVIRONMENT = {
    "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "WARNING",
    "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": "",
    "MC_TCP_BIND_ADDRESS": "127.0.0.1", "GLOG_minloglevel": "1",
}


class PeerError(Exception):
    """A peer's server or client failed; the message says how."""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Processes:
    """All children of one path's measurement."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.children: list[tuple[str, subprocess.Popen]] = []
        self.pids: list[int] = []  # of all that were ever started

    def start(self, name: str, command: list[str], executable: str | None = None,
              **pipes: Any) -> subprocess.Popen:
        with open(self.folder / f"{name}.log", "ab") as log:
            options = {"stdin": subprocess.DEVNULL, "stdout": log, **pipes}
            # A session of its own: Ctrl-C reaches only this process, which then ends the children.
            child = subprocess.Popen(command, executable=executable, stderr=log, cwd=self.folder,
                                     env={**os.environ, **ENVIRONMENT}, start_new_session=True,
                                     preexec_fn=die_with_parent, **options)
        self.children.append((name, child))
        self.pids.append(child.pid)
        return child

    def stop(self) -> None:
        """Clients first, which leave when stdin ends, then servers; who stays is killed."""
        clients = [child for _, child in self.children if child.stdin]
        for child in clients:
            with contextlib.suppress(OSError):
                child.stdin.close()
        wait_for_exit(clients)
        for _, child in reversed(self.children):
            send_signal(child, signal.SIGTERM)
        wait_for_exit([child for _, child in self.children])
        for _, child in self.children:
            send_signal(child, signal.SIGKILL)
            child.wait()
            if child.stdout:
                child.stdout.close()
        self.children = []

    def check(self) -> None:
        for name, child in self.children:
            if child.poll() is not None:
                raise PeerError(f"{name} ended with code {child.returncode}{self.last_words(name)}")

    def last_words(self, name: str) -> str:
        with contextlib.suppress(OSError):
            text = (self.folder / f"{name}.log").read_text(errors="replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if lines:
                return ": " + lines[-1][-300:]
        return ""

    def wait_for_port(self, port: int, seconds: float) -> None:
        self.wait_for(lambda: socket.create_connection(("127.0.0.1", port), 1).close(),
                      f"nothing listens on port {port}", seconds)

    def wait_for_socket(self, path: str, seconds: float) -> None:
        def connect() -> None:
            with socket.socket(socket.AF_UNIX) as stream:
                stream.connect(path)
        self.wait_for(connect, f"nothing listens on {path}", seconds)

    def wait_for(self, attempt: Any, complaint: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self.check()
            try:
                return attempt()
            except OSError:
                if time.monotonic() > deadline:
                    raise PeerError(f"{complaint} after {seconds:.0f} s") from None
                time.sleep(0.05)


def wait_for_exit(children: list[subprocess.Popen]) -> None:
    deadline = time.monotonic() + STOP_SECONDS_MAX
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))


def send_signal(child: subprocess.Popen, number: int) -> None:
    """To the child and what it started; a child leads a process group of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if child.poll() is None or number == signal.SIGKILL:
            os.killpg(child.pid, number)


class ClientProcess:
    """A transport_client.py and the pipe of orders and answers to it."""

    def __init__(self, processes: Processes, python: str, order: dict[str, Any]) -> None:
        self.processes, self.name = processes, f"client{order['index']}"
        self.child = processes.start(self.name, [python, str(CLIENT)],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pending = b""
        self.send(order)

    def send(self, order: dict[str, Any]) -> None:
        try:
            self.child.stdin.write(json.dumps(order).encode() + b"\n")
            self.child.stdin.flush()
        except OSError:
            pass  # it is gone; receive() says why

    def receive(self, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while b"\n" not in self.pending:
            ready, _, _ = select.select([self.child.stdout], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise PeerError(f"{self.name} gave no answer within {seconds:.0f} s")
            chunk = os.read(self.child.stdout.fileno(), 1 << 20)
            if not chunk:
                self.child.wait(STOP_SECONDS_MAX)
                raise PeerError(f"{self.name} ended with code {self.child.returncode}"
                                f"{self.processes.last_words(self.name)}")
            self.pending += chunk
        line, _, self.pending = self.pending.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer["result"]
