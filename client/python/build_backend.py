"""scikit-build-core, with one thing more: a source distribution carries the C++ sources that the
modules are built from, in cpp/, since it has no folders above it."""

import os
import pathlib
import shutil
import tempfile

from scikit_build_core import build as _backend
from scikit_build_core.build import (  # noqa: F401  what a build frontend calls
    build_editable,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
OF_THE_REPOSITORY = [
    "CMakeLists.txt",
    "LICENSE",
    "client/*",
    "client/worker/page_buffer.*",
    "client/worker/thread_pool.*",
    "kernels/*",
    "proto/*",
    "proto/pagoda/v1/*",
    "storage/base/*",
    "storage/device/*",
]
OF_THE_PACKAGE = ["build_backend.py", "CMakeLists.txt", "pyproject.toml", "README.md", "src/**/*"]
SUFFIXES = {"", ".cc", ".h", ".md", ".proto", ".py", ".pyi", ".toml", ".txt", ".typed"}
NOT_BUILT = ("_test.cc", "_bench.cc", "_fuzz.cc")


def _copy(source: pathlib.Path, patterns: list[str], target: pathlib.Path) -> None:
    for pattern in patterns:
        for path in sorted(source.glob(pattern)):
            if not path.is_file() or path.suffix not in SUFFIXES or path.name.endswith(NOT_BUILT):
                continue
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)


def build_sdist(sdist_directory, config_settings=None):
    if (HERE / "cpp").exists():  # out of a source distribution: it is one already
        return _backend.build_sdist(sdist_directory, config_settings)
    target = os.path.abspath(sdist_directory)
    with tempfile.TemporaryDirectory() as folder:
        whole = pathlib.Path(folder) / "pagoda-kv"
        _copy(HERE, OF_THE_PACKAGE, whole)
        _copy(REPOSITORY, OF_THE_REPOSITORY, whole / "cpp")
        before = os.getcwd()
        os.chdir(whole)
        try:
            return _backend.build_sdist(target, config_settings)
        finally:
            os.chdir(before)
