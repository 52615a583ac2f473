#!/usr/bin/env python3
"""Lets PyTorch's CUDA wheel be imported on a machine without CUDA's libraries.

The wheel that the package index has for x86-64 is linked against CUDA's libraries, which are
gigabytes of other wheels. A process that stays on the CPU calls almost none of their functions. So
for each library that torch names and that is absent, this builds a small one with the same soname,
symbols and symbol versions, in which every function returns an error, and puts it into torch/lib,
where torch's own libraries look first. torch then finds no GPU and goes on with the CPU.

Run it with the Python of the environment that has torch. Needs gcc, readelf and nm.
"""

import collections
import pathlib
import re
import subprocess
import sysconfig
import tempfile

FOREIGN = re.compile(r"lib(?:cu|nv|nccl)")
FUNCTION = re.compile(r"_*(?:cu|nccl|nvrtc|nvshmem|nvtx|__nv)")
# Which library an unversioned symbol belongs to: the first prefix that fits.
OWNERS = [("nccl", "libnccl"), ("nvshmem", "libnvshmem_host"), ("cusparseLt", "libcusparseLt"),
          ("cusparse", "libcusparse"), ("curand", "libcurand"), ("cufft", "libcufft"),
          ("cuFile", "libcufile"), ("cupti", "libcupti"), ("cublasLt", "libcublasLt"),
          ("cublas", "libcublas"), ("cudnn", "libcudnn"), ("nvrtc", "libnvrtc"), ("", "libcudart")]
NO_DEVICE = 100  # cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE
BODIES = {  # what torch calls while it is imported
    "cudaGetDeviceCount": "int cudaGetDeviceCount(int *n) { if (n) *n = 0; return 100; }",
    "cudaGetLastError": "int cudaGetLastError(void) { return 0; }",
    "cudaPeekAtLastError": "int cudaPeekAtLastError(void) { return 0; }",
    "cudaDriverGetVersion": "int cudaDriverGetVersion(int *v) { if (v) *v = 0; return 0; }",
    "cudaRuntimeGetVersion": "int cudaRuntimeGetVersion(int *v) { if (v) *v = 13000; return 0; }",
    "__cudaRegisterFatBinary":
        "static void *handle[8]; void **__cudaRegisterFatBinary(void *p) { return handle; }",
}


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def needed_libraries(library: pathlib.Path) -> set[str]:
    names = re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-dW", str(library)))
    return {name for name in names if FOREIGN.match(name)}


def undefined_symbols(library: pathlib.Path) -> dict[str, str]:
    """Symbol -> version, or "" where it has none."""
    found = {}
    for line in output("nm", "-D", "--undefined-only", str(library)).splitlines():
        name, _, version = line.split()[-1].partition("@")
        if FUNCTION.match(name):
            found[name] = version.lstrip("@")
    return found


def version_owners(library: pathlib.Path) -> dict[str, str]:
    """Symbol version -> the library that it is expected from."""
    owners, owner = {}, ""
    for line in output("readelf", "-VW", str(library)).splitlines():
        if match := re.search(r"\bFile: (\S+)", line):
            owner = match.group(1)
        elif owner and (match := re.search(r"\bName: (\S+)\s+Flags", line)):
            owners.setdefault(match.group(1), owner)
    return owners


def owner_of(name: str, needed: set[str]) -> str | None:
    stem = next(stem for prefix, stem in OWNERS if name.startswith(prefix))
    return next((library for library in sorted(needed) if library.startswith(stem + ".so")), None)


def body(name: str) -> str:
    if name in BODIES:
        return BODIES[name]
    if re.search(r"(?:Error(?:String|Name)?|StatusString|Name)$", name):
        return f'const char *{name}(void) {{ return "no CUDA here"; }}'
    return f"long {name}(void) {{ return {0 if name.startswith('__cuda') else NO_DEVICE}; }}"


def version_script(symbols: dict[str, str]) -> str:
    groups = collections.defaultdict(list)
    for name, version in symbols.items():
        groups[version].append(name)
    return "".join(f"{version} {{ global: {'; '.join(sorted(names))}; }};\n"
                   for version, names in groups.items() if version)


def build(target: pathlib.Path, symbols: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "stub.c")
        source.write_text("\n".join(body(name) for name in sorted(symbols)) + "\n")
        command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-fno-builtin", "-nostdlib",
                   f"-Wl,-soname,{target.name}", "-o", str(target), str(source)]
        if script := version_script(symbols):
            versions = pathlib.Path(folder, "versions.map")
            versions.write_text(script)
            command.append(f"-Wl,--version-script={versions}")
        subprocess.run(command, check=True, timeout=60)


def main() -> None:
    folder = pathlib.Path(sysconfig.get_paths()["platlib"], "torch", "lib")
    libraries = sorted(folder.glob("lib*torch*.so")) + sorted(folder.glob("libc10*.so"))
    needed: set[str] = set()
    symbols: dict[str, str] = {}
    owners: dict[str, str] = {}
    for library in libraries:
        needed |= needed_libraries(library)
        symbols |= undefined_symbols(library)
        owners |= version_owners(library)
    wanted = collections.defaultdict(dict)
    for name, version in symbols.items():
        library = owners.get(version) if version else owner_of(name, needed)
        if library:
            wanted[library][name] = version
    for library in sorted(needed):
        if not (folder / library).exists():
            build(folder / library, wanted[library])
    print(f"torch_stubs: {len(needed)} libraries, {len(symbols)} functions in {folder}")


if __name__ == "__main__":
    main()
