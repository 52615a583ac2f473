"""Real processes for the integration tests: pagodad, pagoda-worker, pagoda.

Binaries come from PAGODA_BIN_DIR (set by ctest). Everything a test makes lies in a temporary folder
that is removed with it; every wait has a limit.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

BIN = pathlib.Path(os.environ.get("PAGODA_BIN_DIR", "build/release/bin")).resolve()
LIMIT_S = 120  # generous: sanitizer builds on a busy machine
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_folder():
    if os.environ.get("PAGODA_CACHE_DIR"):
        return pathlib.Path(os.environ["PAGODA_CACHE_DIR"])
    if os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(os.environ["XDG_CACHE_HOME"]) / "pagoda"
    return pathlib.Path.home() / ".cache" / "pagoda"


def real_model():
    """Path of the installed model, or a loud skip."""
    path = cache_folder() / "models" / MODEL_FILE
    if not path.exists():
        raise unittest.SkipTest(f"SKIPPED: no model at {path}; run deploy/fetch_model.sh")
    return path


class Case(unittest.TestCase):
    """A test with a folder, whose processes end with it."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pagoda-it-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def tiny_model(self, seed=1, layers=2):
        path = self.folder / f"tiny-{seed}-{layers}.gguf"
        subprocess.run([BIN / "tiny_model", path, str(seed), str(layers)], check=True,
                       timeout=LIMIT_S)
        return path

    def daemon(self, name="data", **arguments):
        daemon = Daemon(self.folder, name, **arguments)
        self.addCleanup(daemon.kill)
        return daemon

    def worker(self, model, daemon=None, **flags):
        worker = Worker(model, daemon, **flags)
        self.addCleanup(worker.close)
        return worker

    def eventually(self, condition, what, limit_s=LIMIT_S):
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if condition():
                return
            time.sleep(0.05)
        self.fail(f"not within {limit_s} s: {what}")


def run(binary, *arguments, timeout=LIMIT_S):
    """Exit code, stdout, stderr of a program that ends by itself."""
    done = subprocess.run([BIN / binary, *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


class Daemon:
    def __init__(self, folder, name, flags=(), start=True):
        self.data = folder / name
        self.target = f"unix:{folder}/{name}.sock"
        self.log_path = folder / f"{name}.log"
        self.flags = [str(flag) for flag in flags]
        self.process = None
        self.metrics_address = None
        if start:
            self.start()

    def start(self):
        seen = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [BIN / "pagodad", "--data-dir", self.data, "--listen", self.target,
                 "--metrics-listen", "127.0.0.1:0", *self.flags],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            text = self.log()[seen:]
            ready = re.search(r"pagodad_ready .*?metrics=(\S+)", text)
            if ready:
                self.metrics_address = ready.group(1)
                return
            if self.process.poll() is not None:
                raise AssertionError(f"pagodad ended with {self.process.returncode}: {text}")
            time.sleep(0.02)
        raise AssertionError(f"pagodad not ready: {self.log()}")

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT_S)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)

    def status(self):
        code, out, err = run("pagoda", "status", "--daemon", self.target, "--json", "-")
        if code != 0:
            raise AssertionError(f"pagoda status: {err}")
        return json.loads(out)

    def metrics(self):
        """Metric name with labels -> value."""
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=30) as page:
            text = page.read().decode()
        values = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def metric_sum(self, name, *labels):
        return sum(value for key, value in self.metrics().items()
                   if key.split("{")[0] == name and all(label in key for label in labels))


class Worker:
    """pagoda-worker answering JSON lines."""

    def __init__(self, model, daemon=None, **flags):
        command = [BIN / "pagoda-worker", "--quiet", "--model", model]
        if daemon is not None:
            command += ["--daemon", daemon.target if isinstance(daemon, Daemon) else daemon]
        for name, value in flags.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        self.errors = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def send(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def receive(self, limit_s=10 * LIMIT_S):
        timer = threading.Timer(limit_s, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            self.errors.seek(0)
            raise AssertionError(f"pagoda-worker ended: {self.errors.read()}")
        return json.loads(line)

    def ask(self, **request):
        self.send(**request)
        answer = self.receive()
        if "error" in answer:
            raise AssertionError(f"pagoda-worker: {answer['error']}")
        return answer

    def kill(self):
        self.process.kill()
        self.process.wait(LIMIT_S)

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()  # the worker ends when it has answered
            try:
                self.process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(LIMIT_S)
        if not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()


def settled(daemon):
    """Nothing waits to be encoded or written: what is known now survives a kill."""
    status = daemon.status()
    return (status["encode_queue_pages"] == 0 and status["persist_queue_pages"] == 0
            and status["unflushed_pages"] == 0 and status["sequences"] == 0)


def main():
    """Like unittest.main(), but exit code 77 when everything was skipped."""
    program = unittest.main(exit=False, verbosity=2)
    result = program.result
    if not result.wasSuccessful():
        raise SystemExit(1)
    raise SystemExit(77 if result.skipped and len(result.skipped) == result.testsRun else 0)
