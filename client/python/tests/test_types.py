"""Goal: the stubs say what the module has: every name, and the parameters of every function.
Method: the stub's syntax tree beside the signatures that the module knows of itself."""

import ast
import pathlib
import re

import pagoda_kv
import pytest
from pagoda_kv import _core

STUB = ast.parse(pathlib.Path(_core.__file__).with_name("_core.pyi").read_text())


def functions(body, prefix=""):
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body, node.name + ".")
        elif isinstance(node, ast.FunctionDef):
            is_property = any(getattr(d, "id", "") == "property" for d in node.decorator_list)
            yield prefix + node.name, None if is_property else node.args


def names(body, prefix=""):
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from names(node.body, node.name + ".")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.AnnAssign):
            yield prefix + node.target.id


def at(name):
    value = _core
    for part in name.split("."):
        value = getattr(value, part)
    return value


def test_every_name_of_the_stub_is_there():
    for name in names(STUB.body):
        at(name)


def test_every_public_name_is_in_the_stub():
    known = set(names(STUB.body))
    for name in dir(_core):
        if name.startswith("_"):
            continue
        assert name in known and name in pagoda_kv.__all__
        for member in dir(at(name)) if isinstance(at(name), type) else ():
            if not member.startswith("_") and not hasattr(Exception, member):
                assert f"{name}.{member}" in known


@pytest.mark.parametrize("name, arguments", [f for f in functions(STUB.body) if f[1] is not None])
def test_parameters(name, arguments):
    if name.endswith("__exit__"):
        return
    signature = re.sub(r"\[[^\]]*\]", "", at(name).__nb_signature__[0][0])
    told = re.findall(r"[(,] (?:\*, )?(\w+)(?=[:,)=])", signature.replace("(", "( "))
    wanted = [a.arg for a in arguments.args + arguments.kwonlyargs]
    assert [a for a in told if a != "self"] == [a for a in wanted if a != "self"], signature
    if arguments.kwonlyargs:
        assert "*, " + arguments.kwonlyargs[0].arg in signature
