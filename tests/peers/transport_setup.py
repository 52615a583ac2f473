"""Sets the peers of transport.py up: packages of Debian, one virtual environment for each peer.

Environments lie in the cache folder (deploy/cache_folder.sh) and are named after their pins, so
that a changed pin makes a new one and an unchanged one is made once. Nothing is installed into
the system's Python, and no service is started.
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent
APT_SECONDS_MAX = 300
PIP_SECONDS_MAX = 900
# redis-tools has the server's program too, under another name, and unlike the package
# redis-server it starts no service.
REDIS_PACKAGE = "redis-tools"
REDIS_OTHER_NAME = "/usr/bin/redis-check-rdb"
MOONCAKE_PACKAGES = ["libibverbs1", "librdmacm1", "libnuma1"]


class SetupError(Exception):
    """A peer cannot be set up here; the message says why, for people."""


def say(text: str) -> None:
    print(f"transport: {text}", file=sys.stderr, flush=True)


def cache_folder() -> pathlib.Path:
    script = HERE.parents[1] / "deploy" / "cache_folder.sh"
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, timeout=10)
    if done.returncode != 0:
        raise SetupError(done.stderr.strip())
    return pathlib.Path(done.stdout.strip())


def run(command: list[str], seconds: int, what: str) -> None:
    """Runs a step of the set-up; its output appears only when it fails."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=seconds,
                              env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"))
    except FileNotFoundError as error:
        raise SetupError(f"{what}: no program {error.filename}") from None
    except subprocess.TimeoutExpired:
        raise SetupError(f"{what}: not done after {seconds} s") from None
    if done.returncode != 0:
        last = [line for line in done.stdout.splitlines() if line.strip()][-3:]
        raise SetupError(f"{what}: exit code {done.returncode}: " + " | ".join(last))


def apt_install(packages: list[str]) -> None:
    """Installs those of the packages that are missing."""
    if not shutil.which("dpkg-query"):
        raise SetupError(f"not a Debian system; needs what Debian calls {' '.join(packages)}")
    missing = [name for name in packages if not is_installed(name)]
    if not missing:
        return
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    if os.geteuid() != 0:
        raise SetupError(f"missing, and installing them needs root: {' '.join(missing)}")
    say(f"installing {' '.join(missing)}")
    try:
        run(install, APT_SECONDS_MAX, "apt-get install")
    except SetupError:  # old lists name versions that are gone
        with contextlib.suppress(SetupError):  # another repository of the machine may be down
            run(["apt-get", "update", "-qq"], APT_SECONDS_MAX, "apt-get update")
        run(install, APT_SECONDS_MAX, "apt-get install")


def is_installed(package: str) -> bool:
    done = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}", package],
                          capture_output=True, text=True, timeout=30)
    return done.returncode == 0 and done.stdout.startswith("ii")


def redis_program() -> str:
    """The path of a program that is redis-server when it is called by that name."""
    for turn in range(2):
        for path in (shutil.which("redis-server"), REDIS_OTHER_NAME):
            if path and os.access(path, os.X_OK):
                return path
        if turn == 0:
            apt_install([REDIS_PACKAGE])
    raise SetupError(f"no redis-server, although {REDIS_PACKAGE} is installed")


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Two runs at the same time do not make the same environment."""
    with open(path, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(f"another run is setting it up ({path})") from None
        yield


def environment(name: str, disk: str) -> pathlib.Path:
    """The bin folder of the peer's virtual environment, made if it is not there."""
    pins = HERE / f"{name}_requirements.txt"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(pins.read_bytes() + version.encode()).hexdigest()[:12]
    folder = cache_folder() / "peers" / f"{name}-{digest}"
    complete = folder / "complete"
    if complete.exists():
        return folder / "bin"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_suffix(".lock")):
        say(f"making the environment of {name}, once: {disk} in {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(folder)], 120, "python3 -m venv (package python3-venv)")
        run([str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check",
             "--no-deps", "-r", str(pins)], PIP_SECONDS_MAX, "pip install")
        if name == "lmcache":
            run([str(folder / "bin" / "python"), str(HERE / "torch_stubs.py")], 120, "torch_stubs.py")
        check_import(folder / "bin", {"lmcache": "lmcache.lmcache_native",
                                      "mooncake": "mooncake.store"}[name])
        complete.touch()
    return folder / "bin"


def check_import(bin_folder: pathlib.Path, module: str) -> None:
    run([str(bin_folder / "python"), "-c", f"import {module}"], 120, f"import {module}")


def set_up_redis() -> pathlib.Path:
    return pathlib.Path(redis_program())


def set_up_lmcache() -> pathlib.Path:
    return environment("lmcache", "530 MB of downloads, 1.7 GB")


def set_up_mooncake() -> pathlib.Path:
    apt_install(MOONCAKE_PACKAGES)
    return environment("mooncake", "90 MB of downloads, 270 MB")


SET_UP = {"redis": set_up_redis, "lmcache": set_up_lmcache, "mooncake": set_up_mooncake}
