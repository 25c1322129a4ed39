"""Every name of the array API standard 2025.12 exists in weft, with a signature that fits."""

import inspect
import math
from inspect import Parameter, Signature
from typing import Any

import array_api_strict
import numpy as np
import pytest

import weft as wf
from tests.array_api.standard import (
    ATTRIBUTES,
    CONSTANTS,
    DTYPES,
    FFT,
    LINALG,
    METHODS,
    NAMESPACE,
)

TABLES = {"": NAMESPACE, "linalg": LINALG, "fft": FFT}
FUNCTIONS = [(part, name) for part, table in TABLES.items() for name in table]
NOT_STANDARD = {"__array_api_version__", "__version__", "ArrayAPIStrictFlags", "Device"}
NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def module(root: Any, part: str) -> Any:
    return getattr(root, part) if part else root


def counterpart(wanted: Parameter, position: int, found: Signature) -> Parameter | None:
    """The parameter of `found` that gets what the standard's parameter gets."""
    ours = list(found.parameters.values())
    if wanted.kind is Parameter.KEYWORD_ONLY:
        given = found.parameters.get(wanted.name)
        return given if given is not None and given.kind in NAMED else None
    if position >= len(ours):
        return None
    given = ours[position]
    if wanted.kind is Parameter.POSITIONAL_OR_KEYWORD:
        return given if (given.name, given.kind) == (wanted.name, wanted.kind) else None
    if wanted.kind is Parameter.POSITIONAL_ONLY:
        return given if given.kind in (wanted.kind, Parameter.POSITIONAL_OR_KEYWORD) else None
    return given if given.kind is wanted.kind else None


def misfit(found: Signature, standard: Signature) -> str | None:
    """Why a call that the standard allows would not fit; None if every one does."""
    used = []
    for position, wanted in enumerate(standard.parameters.values()):
        given = counterpart(wanted, position, found)
        if given is None:
            return f"{wanted} is missing, or is passed in another way"
        if wanted.default is not Parameter.empty and given.default != wanted.default:
            return f"{wanted.name} is {given.default!r} by default, not {wanted.default!r}"
        used.append(given.name)
    more = [p for p in found.parameters.values() if p.name not in used and p.default is p.empty]
    demanded = [p.name for p in more if p.kind in (*NAMED, Parameter.POSITIONAL_ONLY)]
    return f"{demanded} must be given" if demanded else None


@pytest.mark.parametrize(("part", "name"), FUNCTIONS)
def test_a_function_of_the_standard_exists_and_takes_the_arguments_it_allows(part, name):
    function = getattr(module(wf, part), name)
    problem = misfit(inspect.signature(function), TABLES[part][name])
    assert problem is None, f"{name}{inspect.signature(function)}: {problem}"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_standard_exists_and_takes_the_arguments_it_allows(name):
    method = getattr(wf.Tensor, name)
    problem = misfit(inspect.signature(method), METHODS[name])
    assert problem is None, f"{name}{inspect.signature(method)}: {problem}"


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_of_the_standard_is_a_property_without_a_setter(name):
    assert isinstance(getattr(wf.Tensor, name), property)
    with pytest.raises(AttributeError):
        setattr(wf.zeros((2, 2)), name, None)


def test_attributes_have_the_types_the_standard_asks_for():
    x = wf.zeros((2, 3))
    assert (x.shape, x.ndim, x.size) == ((2, 3), 2, 6)
    assert type(x.shape) is tuple
    assert all(type(side) is int for side in (*x.shape, x.ndim, x.size))
    assert x.mT.shape == x.T.shape == (3, 2)
    assert x.dtype == wf.float32
    assert x.device == wf.__array_namespace_info__().default_device()


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_of_the_standard_has_its_value(name):
    found = getattr(wf, name)
    if name == "newaxis":
        assert found is None
    else:
        assert type(found) is float
        assert found == getattr(math, name) or (name == "nan" and math.isnan(found))


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_of_the_standard_equals_itself_alone(name):
    dtype = getattr(wf, name)
    assert dtype == getattr(wf, name)
    assert [other for other in DTYPES if getattr(wf, other) == dtype] == [name]


@pytest.mark.parametrize("version", ["2021.12", "2022.12", "2023.12", "2024.12", "2025.12", None])
def test_the_namespace_of_a_tensor_is_weft(version):
    assert wf.zeros(1).__array_namespace__(api_version=version) is wf


def test_the_namespace_says_which_version_it_follows_and_refuses_others():
    assert wf.__array_api_version__ == "2025.12"
    with pytest.raises(ValueError, match=r"1999\.01"):
        wf.zeros(1).__array_namespace__(api_version="1999.01")


@pytest.mark.parametrize(("part", "name"), FUNCTIONS)
def test_the_table_of_signatures_agrees_with_array_api_strict(part, name):
    reference = inspect.signature(getattr(module(array_api_strict, part), name))
    kinds = [(p.name, p.kind) for p in reference.parameters.values()]
    table = TABLES[part][name]
    assert [(p.name, p.kind) for p in table.parameters.values()] == kinds


def test_the_table_has_every_public_name_of_array_api_strict():
    for part, table in TABLES.items():
        names = set(module(array_api_strict, part).__all__)
        known = {*table, *CONSTANTS, *DTYPES, *NOT_STANDARD, "linalg", "fft"}
        assert {n for n in names - known if not n.endswith("strict_flags")} == set(), part


def test_misfits_are_found():
    def fits(x, /, *, axis=None): ...
    def lacks(x, /): ...
    def renames(a, /, *, dim=None): ...
    def defaults(x, /, *, axis=0): ...
    def demands(x, /, *, axis=None, more): ...

    wanted = inspect.signature(fits)
    assert misfit(wanted, wanted) is None
    assert misfit(inspect.signature(np.sum), wanted) is None
    for wrong in (lacks, renames, defaults, demands):
        assert misfit(inspect.signature(wrong), wanted) is not None
