"""What weft says of itself: capabilities, devices, default dtypes, and questions about dtypes."""

import array_api_strict
import numpy as np
import pytest
from hypothesis.extra.array_api import make_strategies_namespace

import weft as wf
from tests.array_api.draws import ALL, COMPLEX, FLOATS, INTEGERS, SIGNED, UNSIGNED, mix

KINDS = {
    "bool": ("bool",),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": INTEGERS,
    "real floating": FLOATS,
    "complex floating": COMPLEX,
    "numeric": INTEGERS + FLOATS + COMPLEX,
}
info = wf.__array_namespace_info__()


def dtype(name: str) -> np.dtype:
    return getattr(wf, name)


def test_capabilities_are_those_the_standard_names():
    capabilities = info.capabilities()
    assert set(capabilities) == {"boolean indexing", "data-dependent shapes", "max dimensions"}
    assert capabilities["boolean indexing"] is True
    assert capabilities["data-dependent shapes"] is True
    most = capabilities["max dimensions"]
    assert wf.zeros((1,) * most).ndim == most


def test_the_default_device_is_a_device_and_every_device_holds_arrays():
    assert info.default_device() in info.devices()
    for device in info.devices():
        if device.kind == "cpu":
            assert wf.zeros(2, device=device).device == device


def test_default_dtypes_are_what_functions_use():
    defaults = info.default_dtypes()
    assert set(defaults) == {"real floating", "complex floating", "integral", "indexing"}
    assert wf.asarray(1.0).dtype == wf.zeros(1).dtype == defaults["real floating"] == wf.float32
    assert wf.linspace(0, 1, 3).dtype == wf.eye(2).dtype == defaults["real floating"]
    assert wf.asarray(1j).dtype == defaults["complex floating"] == wf.complex64
    assert wf.asarray(1).dtype == wf.arange(3).dtype == defaults["integral"] == wf.int64
    x = wf.asarray([3.0, 1.0])
    indexing = defaults["indexing"]
    assert wf.argsort(x).dtype == wf.argmax(x).dtype == wf.nonzero(x)[0].dtype == indexing
    assert wf.count_nonzero(x).dtype == wf.searchsorted(x, x).dtype == indexing
    assert wf.unique_counts(x).counts.dtype == wf.unique_inverse(x)[1].dtype == indexing
    assert info.default_dtypes(device=info.default_device()) == defaults


def test_default_dtypes_follow_the_setting():
    with wf.default_dtype(wf.float64):
        defaults = info.default_dtypes()
        assert defaults["real floating"] == wf.asarray(1.0).dtype == wf.float64
        assert defaults["complex floating"] == wf.asarray(1j).dtype == wf.complex128


def test_dtypes_are_those_of_the_standard():
    assert info.dtypes() == {name: dtype(name) for name in ALL}
    assert info.dtypes(device=info.default_device()) == info.dtypes()


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_of_a_kind_are_those_isdtype_knows(kind):
    expected = {name: dtype(name) for name in KINDS[kind]}
    assert info.dtypes(kind=kind) == info.dtypes(kind=(kind,)) == expected
    for name in ALL:
        assert wf.isdtype(dtype(name), kind) is (name in KINDS[kind])
        assert wf.isdtype(dtype(name), (kind, "bool")) is (name in (*KINDS[kind], "bool"))


def test_dtypes_of_several_kinds_are_their_union():
    assert info.dtypes(kind=("bool", "real floating")) == {
        name: dtype(name) for name in ("bool", *FLOATS)
    }
    assert info.dtypes(kind=()) == {}
    with pytest.raises(ValueError, match="no kind"):
        info.dtypes(kind="numbers")


@pytest.mark.parametrize("name", ALL)
def test_isdtype_compares_dtypes(name):
    for other in ALL:
        assert wf.isdtype(dtype(name), dtype(other)) is (name == other)
    assert wf.isdtype(dtype(name), (wf.int8, dtype(name))) is True


def test_isdtype_refuses_an_unknown_kind():
    with pytest.raises(ValueError, match="not a kind"):
        wf.isdtype(wf.int8, "integer")


@pytest.mark.parametrize("name", ALL)
def test_can_cast_follows_promotion_from_dtypes_and_arrays(name):
    x = wf.zeros(2, dtype=dtype(name))
    for other in ALL:
        if mix(name, other):
            expected = wf.result_type(dtype(name), dtype(other)) == dtype(other)
            assert wf.can_cast(dtype(name), dtype(other)) is expected
            assert wf.can_cast(x, dtype(other)) is expected


@pytest.mark.parametrize("name", FLOATS + COMPLEX)
def test_finfo_gives_python_floats_for_dtypes_and_arrays(name):
    found = wf.finfo(dtype(name))
    expected = array_api_strict.finfo(getattr(array_api_strict, name))
    assert found == wf.finfo(wf.zeros(1, dtype=dtype(name)))
    for field in ("eps", "max", "min", "smallest_normal"):
        assert type(getattr(found, field)) is float
        assert getattr(found, field) == getattr(expected, field)
    assert (type(found.bits), found.bits) == (int, expected.bits)
    assert found.dtype == wf.real(wf.zeros(1, dtype=dtype(name))).dtype


@pytest.mark.parametrize("name", INTEGERS)
def test_iinfo_gives_python_integers_for_dtypes_and_arrays(name):
    found = wf.iinfo(dtype(name))
    expected = array_api_strict.iinfo(getattr(array_api_strict, name))
    assert found == wf.iinfo(wf.zeros(1, dtype=dtype(name)))
    for field in ("bits", "max", "min"):
        assert type(getattr(found, field)) is int
        assert getattr(found, field) == getattr(expected, field)
    assert found.dtype == dtype(name)


def test_limits_of_the_wrong_kind_raise():
    with pytest.raises(TypeError, match="iinfo"):
        wf.finfo(wf.int8)
    with pytest.raises(TypeError, match="finfo"):
        wf.iinfo(wf.float32)


def test_result_type_takes_arrays_dtypes_and_numbers_together():
    x = wf.zeros(1, dtype=wf.int8)
    assert wf.result_type(x, wf.int16) == wf.int16
    assert wf.result_type(x, 1) == wf.int8
    assert wf.result_type(1, x, wf.uint8) == wf.int16
    assert wf.result_type(wf.float32, 1.0) == wf.float32
    assert wf.result_type(wf.float64, 1j) == wf.complex128
    assert wf.result_type(x) == wf.int8


def test_hypothesis_draws_weft_arrays():
    found = make_strategies_namespace(wf)
    assert found.api_version >= "2024.12"
    drawn = found.arrays(found.scalar_dtypes(), found.array_shapes())
    assert "arrays" in repr(drawn)
