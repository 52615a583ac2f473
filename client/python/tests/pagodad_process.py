"""A real pagodad for tests, on a Unix socket in a folder of its own."""

import os
import pathlib
import signal
import subprocess
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


def program():
    """$PAGODAD, or bin/pagodad of $PAGODA_BUILD_DIR (build/release)."""
    build = os.environ.get("PAGODA_BUILD_DIR", str(REPOSITORY / "build" / "release"))
    path = pathlib.Path(os.environ.get("PAGODAD", f"{build}/bin/pagodad"))
    if not path.is_file():
        raise RuntimeError(
            f"no pagodad at {path}: build it (cmake --build --preset release --target pagodad), or "
            "set PAGODAD to its path or PAGODA_BUILD_DIR to the build's folder"
        )
    return str(path)


class Pagodad:
    def __init__(self, folder, listen=None, ladder="raw16"):
        self.folder = pathlib.Path(folder)
        self.listen = listen or f"unix:{self.folder}/pagodad.sock"
        self.log = self.folder / "pagodad.log"
        self.options = ["--host-capacity", "256MiB", "--ladder", ladder]
        self.process = None

    def start(self, seconds=30):
        command = [
            *(program(), "--data-dir", str(self.folder / "data"), "--listen", self.listen),
            *("--metrics-listen", "none", *self.options),
        ]
        with open(self.log, "ab") as log:
            seen = log.tell()
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            if b"pagodad_ready" in self.log.read_bytes()[seen:]:
                return self
            time.sleep(0.02)
        text = self.log.read_text(errors="replace")
        self.kill()
        raise RuntimeError(f"pagodad did not become ready in {seconds} s:\n{text}")

    def stop(self, seconds=30):
        """A clean stop."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(seconds)
            self.process = None

    def freeze(self):
        """Answers nobody from now on."""
        self.process.send_signal(signal.SIGSTOP)
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.001)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
