#!/usr/bin/env python3
"""Goal: no kernel takes more registers, spills or shared memory than resources.txt states.

Method: compiles every kernel with nvcc for sm_80, sm_90 and sm_100 and reads what ptxas -v says.
Usage: kernels/cuda/resources.py [--update] [--jobs N]
  --update  writes the table instead of checking it
Exit code 0 within the table, 1 above it or a kernel that it lacks, 77 where nvcc is absent.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TABLE = os.path.join(HERE, "resources.txt")
ARCHITECTURES = ("80", "90", "100")
FLAGS = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", f"-I{ROOT}"]
FIGURES = ("registers", "spill_bytes", "shared_bytes")
# What compilers may differ in from one release to the next without a finding.
SLACK = {"registers": 8, "spill_bytes": 16, "shared_bytes": 0}

ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)\w*'")
KERNEL = re.compile(r"\d([A-Z][a-z]+[A-Za-z]*Kernel)((?:I|Li\d+E|Lb[01]E|f|t)*)E")
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def find_nvcc():
    return shutil.which("nvcc") or next(
        (path for path in ("/usr/local/cuda/bin/nvcc",) if os.access(path, os.X_OK)), None)


def kernel_name(mangled):
    """_ZN...12DecodeKernelILi64ELi8EEEv... -> Decode<64,8>"""
    match = KERNEL.search(mangled)
    if not match:
        return mangled
    words = {"f": "float", "t": "u16"}
    arguments = [number or words[letter]
                 for number, letter in re.findall(r"L[ib](\d+)E|([ft])", match.group(2))]
    name = match.group(1).removesuffix("Kernel")
    return f"{name}<{','.join(arguments)}>" if arguments else name


def parse(text):
    """ptxas -v -> {(kernel, architecture): {figure: value}}"""
    rows, row = {}, None
    for line in text.splitlines():
        if match := ENTRY.search(line):
            key = (kernel_name(match.group(1)), "sm_" + match.group(2))
            row = rows.setdefault(key, dict.fromkeys(FIGURES, 0))
        if row is None:
            continue
        if match := SPILL.search(line):
            row["spill_bytes"] = max(int(match.group(1)), int(match.group(2)))
        if match := USED.search(line):
            row["registers"] = int(match.group(1))
            if match := SHARED.search(line):
                row["shared_bytes"] = int(match.group(1))
            row = None
    return rows


def compile_kernels(nvcc, source, architecture):
    command = [nvcc, *FLAGS, "-Xptxas", "-v", "-cubin", f"-arch=sm_{architecture}", "-o", os.devnull,
               source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return parse(done.stdout + done.stderr)


def read_table():
    table = {}
    with open(TABLE, encoding="utf-8") as lines:
        for line in lines:
            words = line.split()
            if words and not line.startswith("#"):
                table[(words[0], words[1])] = dict(zip(FIGURES, map(int, words[2:])))
    return table


def write_table(rows, compiler):
    with open(TABLE, "w", encoding="utf-8") as table:
        table.write(f"# Written by resources.py --update with {compiler}.\n")
        table.write(f"# {'kernel':<24} {'device':<7} {' '.join(f'{f:>12}' for f in FIGURES)}\n")
        for (kernel, device), row in sorted(rows.items()):
            figures = " ".join(f"{row[f]:>12}" for f in FIGURES)
            table.write(f"{kernel:<26} {device:<7} {figures}\n")


def compare(rows, table):
    for (kernel, device), row in sorted(rows.items()):
        stated = table.get((kernel, device))
        if stated is None:
            yield f"{kernel} on {device}: not in resources.txt"
            continue
        for figure in FIGURES:
            if row[figure] > stated[figure] + SLACK[figure]:
                yield (f"{kernel} on {device}: {row[figure]} {figure}, resources.txt states "
                       f"{stated[figure]} and {SLACK[figure]} more pass")
    for kernel, device in sorted(set(table) - set(rows)):
        yield f"{kernel} on {device}: in resources.txt, but no such kernel"


def self_test():
    text = ("ptxas info : Compiling entry function "
            "'_ZN6pagoda7kernels4cuda12DecodeKernelILi64ELi8EEEvNS1_12DecodeParamsE' for 'sm_90'\n"
            "    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
            "ptxas info : Used 66 registers, used 1 barriers, 128 bytes smem\n")
    rows = parse(text)
    key = ("Decode<64,8>", "sm_90")
    assert rows == {key: {"registers": 66, "spill_bytes": 20, "shared_bytes": 128}}, rows
    hashed = "_ZN6pagoda7kernels4cuda46_GLOBAL__N__f3e_13_a_cu_de95B16ScaleKernelILi80EtEEvNS1_1P"
    assert kernel_name(hashed) == "Scale<80,u16>", kernel_name(hashed)
    assert not list(compare(rows, rows))
    fewer = {key: {"registers": 57, "spill_bytes": 3, "shared_bytes": 127}}
    assert len(list(compare(rows, fewer))) == 3
    assert len(list(compare(rows, {}))) == 1
    assert len(list(compare({}, rows))) == 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    self_test()
    nvcc = find_nvcc()
    if nvcc is None:
        print("skipped: nvcc is absent; the kernels were not compiled for any GPU")
        return 77
    sources = sorted(f for f in os.listdir(HERE) if f.endswith(".cu"))
    work = [(nvcc, os.path.join(HERE, source), architecture)
            for source in sources for architecture in ARCHITECTURES]
    rows = {}
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for part in pool.map(lambda item: compile_kernels(*item), work):
            rows.update(part)
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    compiler = "nvcc " + re.search(r"release [\d.]+, V([\d.]+)", version).group(1)
    if arguments.update:
        write_table(rows, compiler)
        print(f"{TABLE}: {len(rows)} rows")
        return 0
    if not os.path.exists(TABLE):
        print(f"{TABLE} is missing: kernels/cuda/resources.py --update writes it")
        return 1
    findings = list(compare(rows, read_table()))
    print(*findings, sep="\n" if findings else "")
    print(f"{compiler}: {len(rows)} kernels of {len(sources)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
