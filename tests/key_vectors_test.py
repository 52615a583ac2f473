#!/usr/bin/env python3
"""Goal: the program in proto/README.md gives the test vectors that stand there and in the C++ tests.

Method: runs it; the values of the table, of the program and of the tests must be the same ones.
"""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def main():
    document = read("proto/README.md")
    program = re.search(r"```python\n(.*?)```", document, re.DOTALL).group(1)
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True,
                             text=True).stdout.split()
    table = re.findall(r"\| `([0-9a-f]{32,64})` \|$", document, re.MULTILINE)
    assert printed == table, f"the program prints {printed}, the table says {table}"
    tests = read("storage/base/page_key_test.cc") + read("storage/base/model_spec_test.cc")
    tests += read("proto/wire_test.cc")
    for value in table:
        assert value in tests, f"no C++ test holds {value}"
    print(f"{len(table)} vectors agree")


if __name__ == "__main__":
    main()
