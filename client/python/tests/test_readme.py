"""Goal: the README's examples work. Method: its blocks of Python, in order, as one program, against
a real daemon."""

import re
import subprocess
import sys

from pagodad_process import REPOSITORY


def examples():
    text = (REPOSITORY / "client" / "python" / "README.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_first_example_is_ten_lines():
    lines = [line for line in examples()[0].splitlines() if not line.startswith("import")]
    assert len(lines) == 10


def test_the_examples_run(pagodad, tmp_path):
    assert len(examples()) == 5
    program = tmp_path / "readme.py"
    program.write_text("\n".join(examples()).replace("127.0.0.1:7070", pagodad.listen))
    done = subprocess.run(
        [sys.executable, "-X", "dev", str(program)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
