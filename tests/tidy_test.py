#!/usr/bin/env python3
"""Goal: the rules of CONTRIBUTING.md that a machine can check hold for every file of the repository.

Method: reads all files git knows or would add; first proves on bad snippets that each rule bites.
Usage: tests/tidy_test.py [--root DIR]; exit code 1 with a line "path:line: what" for each finding.
"""

import argparse
import os
import re
import subprocess
import sys

SOURCE = (".cc", ".h", ".cu", ".cuh")
TEXT = SOURCE + (".py", ".sh", ".md", ".proto", ".txt", ".cmake", ".json", ".yaml", ".yml", ".supp")
LINES_MAX = 800
COLUMNS_MAX = 100

# Folder -> what it may include of ours, and which foreign headers it must not see. The longest
# folder that fits a file counts. "client/." means files in client itself, not in its folders.
WIRE = ["proto/", "pagoda/v1/"]
NO_SERVICES = ["grpcpp/", "google/protobuf/", "rocksdb/", "prometheus/"]
LAYERS = {
    "storage/base/": (["storage/base/"], NO_SERVICES),
    "storage/policy/": (["storage/base/", "storage/policy/"], NO_SERVICES),
    "storage/replay/": (["storage/base/", "storage/policy/", "storage/replay/"], NO_SERVICES),
    "storage/prefetch/": (["storage/base/", "storage/prefetch/", "storage/tier.h"], NO_SERVICES),
    "storage/device/": (["storage/base/", "storage/device/"], NO_SERVICES),
    "storage/": (["storage/"], ["grpcpp/", "google/protobuf/", "prometheus/"]),
    "proto/": (WIRE + ["storage/base/"], ["rocksdb/", "prometheus/"]),
    "kernels/": (["kernels/", "storage/base/"], NO_SERVICES),
    # Of devices the worker's end alone: the facade, and the memory that the daemon shares.
    "client/": (["client/.", "client/testing/", "kernels/", "storage/base/",
                 "storage/device/runtime.h", "storage/device/memory_import.h",
                 "storage/device/peer_link.h", "storage/device/peer_transport.h"] + WIRE, ["rocksdb/"]),
    "client/worker/": (["client/.", "client/worker/", "client/testing/", "kernels/",
                        "storage/base/"] + WIRE, ["rocksdb/", "prometheus/"]),
    # Pages in memory and threads for kernels are those of the worker.
    "client/python/": (["client/.", "client/worker/page_buffer.h", "client/worker/thread_pool.h",
                        "kernels/", "storage/base/"], ["rocksdb/", "prometheus/"]),
    "client/lab/": (["client/lab/", "client/worker/", "kernels/", "storage/base/"], NO_SERVICES),
    "client/cli/": (["client/", "kernels/", "storage/.", "storage/base/", "storage/policy/",
                     "storage/replay/", "cache-server/"] + WIRE, ["rocksdb/"]),
    "cache-server/": (["cache-server/", "storage/", "kernels/"] + WIRE, []),
    "tests/": (["cache-server/", "client/", "storage/", "kernels/", "tests/"] + WIRE, []),
}
OURS = ("storage/", "proto/", "pagoda/v1/", "kernels/", "client/", "cache-server/", "tests/")

# In every file. Registry hosts are written in two parts, so that this file does not name them.
HOSTS = [("pypi", "org"), ("pythonhosted", "org"), ("debian", "org/debian"), ("ubuntu", "com/ubuntu"),
         ("npmjs", "org"), ("npmjs", "com"), ("crates", "io"), ("huggingface", "co")]
EVERYWHERE = [
    (re.compile(r"\b(?:FIX" + r"ME|TO" + r"DO|X" + r"XX)\b"), "unfinished work is not committed"),
    (re.compile(r"(?<![\w.~-])/work" + r"/|\.\./sha" + r"red\b"), "a path outside the repository"),
    (re.compile("|".join(re.escape(".".join(host)) for host in HOSTS)), "a registry's host name"),
]
IN_SOURCE = [
    (re.compile(r"\bstd::(?:recursive_|shared_|timed_)?mutex\b|\bstd::condition_variable\b"),
     "absl::Mutex only: thread-safety analysis does not see others"),
    (re.compile(r"\busing namespace std\b"), "no using namespace std"),
]
# Rules with exceptions: (pattern, message, who may).
TESTS_ONLY = re.compile(r"(_test\.cc|_cuda_test\.cc|/testing/[^/]*|^tests/.*)$")
EXCEPT = [
    # A benchmark is a main of its own.
    (re.compile(r"\bgetenv\b"), "the environment is read in main.cc only and passed down",
     re.compile(r"(/main\.cc|_bench\.cc|^client/worker/model_path\.cc)$|" + TESTS_ONLY.pattern)),
    (re.compile(r"\bcudaDeviceSynchronize\b"), "wait for a stream, not for the device", TESTS_ONLY),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
INCLUDE_LINES = re.compile(INCLUDE.pattern, re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
CMAKE_FILE = re.compile(r"[\w${}./-]+\.(?:cc|h|cu|cuh)\b")
THIS = "tests/tidy_test.py"


def inside(path, folder):
    if folder.endswith("/."):
        return path.startswith(folder[:-1]) and "/" not in path[len(folder) - 1:]
    return path.startswith(folder)


def check_includes(path, lines):
    folder = max((f for f in LAYERS if path.startswith(f)), key=len, default=None)
    if folder is None:
        yield 1, "source outside the known folders"
        return
    ours, foreign = LAYERS[folder]
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        name = match.group(1)
        if name.startswith(OURS) and not any(inside(name, f) for f in ours):
            yield number, f"{folder} must not include {name}"
        if name.startswith(tuple(foreign)):
            yield number, f"{folder} must not know {name}"


def check_source(path, lines):
    yield from check_includes(path, lines)
    table = False  # what stands between these marks is laid out by hand, as a table
    for number, line in enumerate(lines, 1):
        table = (table or "// clang-format off" in line) and "// clang-format on" not in line
        if len(line) > COLUMNS_MAX and not table:
            yield number, f"{len(line)} columns, at most {COLUMNS_MAX}"
        for pattern, message in IN_SOURCE:
            if pattern.search(line):
                yield number, message
        for pattern, message, allowed in EXCEPT:
            if pattern.search(line) and not allowed.search(path):
                yield number, message
    if path.endswith(".h") and not path.endswith("-inl.h"):
        if sum(line.strip() == "#pragma once" for line in lines) != 1:
            yield 1, "a header has one #pragma once"
        if not lines or not lines[0].startswith("//"):
            yield 1, "a header begins with a comment that says what it is"


def check_markdown(path, lines, paths):
    titles, fenced = [], False
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            fenced = not fenced
        if fenced:
            continue
        if line.startswith("# "):
            titles.append(number)
        for target in LINK.findall(line):
            if "://" in target or target.startswith("mailto:"):
                continue
            wanted = os.path.normpath(os.path.join(os.path.dirname(path), target))
            if wanted not in paths and not any(p.startswith(wanted + "/") for p in paths):
                yield number, f"link to {target}, which does not exist"
    if len(titles) != 1 or titles[0] != 1:
        yield (titles or [1])[-1], "a document begins with its title and has no other"


def listed_in_cmake(files):
    """Paths named by the CMakeLists.txt files, and patterns of names with a ${variable}."""
    exact, patterns = set(), []
    for path, text in files.items():
        if os.path.basename(path) != "CMakeLists.txt":
            continue
        folder = os.path.dirname(path)
        for name in CMAKE_FILE.findall(re.sub(r"#.*", "", text)):
            name = re.sub(r"^\$\{(?:PROJECT_SOURCE_DIR|root)\}/", "//", name)
            name = name.replace("${CMAKE_CURRENT_SOURCE_DIR}/", "")
            full = name[2:] if name.startswith("//") else os.path.join(folder, name)
            if "${" in full:
                parts = re.split(r"\$\{\w+\}", full)
                patterns.append((re.compile("([\\w/-]+)".join(map(re.escape, parts)) + "$"), text))
            else:
                exact.add(os.path.normpath(full))
    return exact, patterns


def is_listed(path, exact, patterns):
    if path in exact:
        return True
    for pattern, text in patterns:
        match = pattern.match(path)
        if match and all(re.search(rf"\b{re.escape(word)}\b", text) for word in match.groups()):
            return True
    return False


def check(files):
    """files: path -> text of the whole repository. Returns lines "path:line: what"."""
    findings = []
    exact, patterns = listed_in_cmake(files)
    included = {match.group(1) for text in files.values() for match in INCLUDE_LINES.finditer(text)}
    for path, text in sorted(files.items()):
        lines = text.split("\n")
        found = []
        if path.endswith(SOURCE):
            found += check_source(path, lines)
            # Headers of testing/ folders belong to no library; being included is enough for them.
            used = "/testing/" in path and path in included
            if not used and not is_listed(path, exact, patterns):
                found.append((1, "dead file: no CMakeLists.txt lists it"))
        if path.endswith(".md"):
            found += check_markdown(path, lines, files)
        if path.endswith(SOURCE + (".py", ".sh")) and len(lines) > LINES_MAX:
            found.append((LINES_MAX, f"{len(lines)} lines, at most {LINES_MAX}: two ideas?"))
        for number, line in enumerate(lines, 1):
            if line != line.rstrip():
                found.append((number, "trailing whitespace"))
            if path != THIS:
                found += [(number, m) for pattern, m in EVERYWHERE if pattern.search(line)]
        if text and not text.endswith("\n"):
            found.append((len(lines), "no newline at the end"))
        findings += [f"{path}:{number}: {message}" for number, message in sorted(found)]
    return findings


GOOD = {
    "kernels/CMakeLists.txt": "foreach(op attention)\n  f(SRCS ${op}_test.cc)\nendforeach()\n"
                              "g(HDRS codec.h SRCS codec.cc)\n",
    "kernels/codec.h": "// Codes.\n#pragma once\n#include \"storage/base/bytes.h\"\n",
    "kernels/codec.cc": "#include \"kernels/codec.h\"\n#include <vector>\n#include \"absl/x.h\"\n",
    "kernels/attention_test.cc": "// clang-format off\n//" + "x" * 200 + "\n// clang-format on\n",
    "README.md": "# Pagoda\n\n```\n# not a title\n```\n[kernels](kernels/) [file](kernels/codec.h#x)\n",
}

# What is added to GOOD, and a part of the finding that it must give.
BAD = [
    ({"kernels/codec.cc": "#include \"storage/host_tier.h\"\n"}, "must not include storage/host_tier.h"),
    ({"kernels/codec.cc": "#include <grpcpp/server.h>\n"}, "must not know grpcpp/server.h"),
    ({"storage/policy/a.cc": "#include \"storage/tier.h\"\n"}, "must not include storage/tier.h"),
    ({"storage/base/a.cc": "#include \"storage/policy/a.h\"\n"}, "must not include storage/policy"),
    ({"client/a.cc": "#include \"cache-server/options.h\"\n"}, "must not include cache-server"),
    ({"client/a.cc": "#include \"client/worker/model.h\"\n"}, "must not include client/worker"),
    ({"client/worker/a.cc": "#include \"storage/policy/a.h\"\n"}, "must not include storage/policy"),
    ({"cache-server/a.cc": "#include \"client/client.h\"\n"}, "must not include client/client.h"),
    ({"proto/a.cc": "#include \"kernels/codec.h\"\n"}, "must not include kernels/codec.h"),
    ({"elsewhere/a.cc": "\n"}, "outside the known folders"),
    ({"kernels/codec.cc": "std::mutex m;\n"}, "absl::Mutex only"),
    ({"kernels/codec.cc": "using namespace std;\n"}, "no using namespace std"),
    ({"kernels/codec.cc": "auto x = std::getenv(\"X\");\n"}, "environment"),
    ({"kernels/codec.cc": "cudaDeviceSynchronize();\n"}, "wait for a stream"),
    ({"kernels/codec.cc": "// TO" "DO: later\n"}, "unfinished"),
    ({"kernels/codec.cc": "// " + "x" * 98 + "\n"}, "101 columns"),
    ({"kernels/codec.cc": "// clang-format off\n// clang-format on\n" + "x" * 101 + "\n"}, "101 columns"),
    ({"kernels/codec.cc": "int x; \n"}, "trailing whitespace"),
    ({"kernels/codec.cc": "int x;"}, "no newline"),
    ({"kernels/codec.cc": "\n" * 900}, "at most 800"),
    ({"kernels/codec.h": "// Codes.\n"}, "#pragma once"),
    ({"kernels/codec.h": "#pragma once\n"}, "begins with a comment"),
    ({"kernels/forgotten.cc": "\n"}, "dead file"),
    ({"kernels/other_test.cc": "\n"}, "dead file"),
    ({"kernels/testing/unused.h": "\n"}, "dead file"),
    ({"a.sh": "cat /wo" "rk/main/x\n"}, "outside the repository"),
    ({"a.sh": "ls ../sha" "red\n"}, "outside the repository"),
    ({"a.sh": "curl https://" + ".".join(HOSTS[0]) + "/x\n"}, "host name"),
    ({"README.md": "# A\n# B\n"}, "no other"),
    ({"README.md": "text\n"}, "begins with its title"),
    ({"README.md": "# A\n[x](gone.md)\n"}, "link to gone.md"),
]


def self_test():
    problems = [f"good files give: {finding}" for finding in check(GOOD)]
    for change, expected in BAD:
        findings = check({**GOOD, **change})
        if not any(expected in finding for finding in findings):
            problems.append(f"{change} should give '{expected}', gives {findings}")
    for path in ("cache-server/main.cc", "client/worker/model_path.cc", "tests/a_test.cc"):
        if any("environment" in finding for finding in check({path: "getenv(0);\n"})):
            problems.append(f"{path} may read the environment")
    return problems


def read_tree(root):
    names = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    files = {}
    for name in names:
        path = os.path.join(root, name)
        if not name or not os.path.isfile(path):
            continue
        golden = name.startswith("tests/golden/") and not name.endswith(".md")
        if name.endswith(TEXT) and not golden:
            with open(path, encoding="utf-8") as text:
                files[name] = text.read()
        else:
            files[name] = ""
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    root = parser.parse_args().root
    problems = self_test()
    if problems:
        print("the checker itself is wrong:", *problems, sep="\n  ")
        return 1
    files = read_tree(root)
    findings = check(files)
    print(*findings, sep="\n" if findings else "")
    print(f"tidy: {len(files)} files, {len(findings)} findings, {len(BAD)} rules proven")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
