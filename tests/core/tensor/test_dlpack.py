"""Memory crosses to NumPy, JAX and torch and back without a copy, a leak or a double free."""

import ctypes
import gc
import subprocess
import sys
import textwrap
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.tensor.dlpack import (
    IS_COPIED,
    READ_ONLY,
    _Parcel,
    _VersionedStruct,
    device_name,
    from_capsule_or_object,
    to_capsule,
)
from weft.errors import InteropError

NUMPY_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
NARROW = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
EVERY_DTYPE = [np.dtype(dtype) for dtype in [*NUMPY_DTYPES, *NARROW]]
VERSIONS = [None, (0, 8), (1, 0), (1, 2)]


def named(dtype):
    return np.dtype(dtype).name


def address(array):
    return array.__array_interface__["data"][0]


class Witness(np.ndarray):
    """An array whose death can be watched."""


class Exporter:
    """Exports an array as a tensor does."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return to_capsule(self.array, **keywords)

    def __dlpack_device__(self):
        return (1, 0)


class OldExporter(Exporter):
    """A producer from before DLPack 1."""

    def __dlpack__(self, stream=None):
        return to_capsule(self.array)


def numbers(dtype, count=6):
    return np.arange(count).astype(dtype)


def watched(count=6):
    """An array and a weak reference to the owner of its memory."""
    owner = Witness((count,), np.float32)
    owner[...] = range(count)
    return owner.view(np.ndarray), weakref.ref(owner)


@pytest.mark.parametrize("max_version", VERSIONS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=named)
def test_every_dtype_goes_out_and_comes_back_as_the_same_memory(dtype, max_version):
    array = numbers(dtype)
    result, shared, read_only = from_capsule_or_object(to_capsule(array, max_version=max_version))
    modern = max_version is not None and max_version >= (1, 0)
    assert (shared, read_only) == (True, not modern)
    assert result.dtype == dtype
    assert address(result) == address(array)
    array[0] = 1
    assert result[0] == 1
    if modern:
        result[1] = 0
        assert array[1] == 0


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        *(("bool", 6), ("int32", 0), ("uint8", 1), ("float16", 2), ("complex64", 5)),
        *((ml_dtypes.bfloat16, 4), (ml_dtypes.float8_e4m3fn, 10), (ml_dtypes.float8_e5m2, 12)),
    ],
)
def test_capsules_name_the_dtype_by_the_codes_of_dlpack(dtype, code):
    parcel = _Parcel.of(to_capsule(numbers(dtype), max_version=(1, 2)))
    written = parcel.tensor.dtype
    assert (written.code, written.bits, written.lanes) == (code, np.dtype(dtype).itemsize * 8, 1)
    assert (parcel.tensor.device_kind, parcel.tensor.rank) == (1, 1)
    assert parcel.versioned.major == 1
    assert parcel.versioned.minor >= (1 if code >= 10 else 0)


def test_the_version_asked_for_decides_the_capsule():
    array = numbers("float32")
    names = ["dltensor"] * 2 + ["dltensor_versioned"] * 2
    for max_version, name in zip(VERSIONS, names, strict=True):
        assert f'"{name}"' in repr(to_capsule(array, max_version=max_version))


@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16], ids=named)
@given(data=st.data())
def test_views_keep_their_strides_negative_ones_included(dtype, data):
    view = np.arange(24).astype(dtype).reshape(2, 3, 4)
    for axis in range(3):
        steps = data.draw(st.sampled_from([1, -1, 2, -2]))
        view = np.moveaxis(np.moveaxis(view, axis, 0)[::steps], 0, axis)
    view = view.transpose(data.draw(st.permutations(range(3))))
    result, _, _ = from_capsule_or_object(Exporter(view))
    assert address(result) == address(view)
    assert result.tobytes() == view.tobytes()
    assert result.shape == view.shape


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
@pytest.mark.parametrize("dtype", ["int64", ml_dtypes.bfloat16], ids=named)
def test_scalars_and_empty_arrays_cross(shape, dtype):
    array = np.ones(shape, dtype)
    result, _, _ = from_capsule_or_object(Exporter(array))
    assert (result.shape, result.dtype) == (shape, dtype)
    assert result.tobytes() == array.tobytes()


def test_numpy_reads_our_capsules_in_place():
    array = numbers("float32")
    result = np.from_dlpack(Exporter(array))
    assert address(result) == address(array)
    result[2] = 20
    assert array[2] == 20


@pytest.mark.slow
@pytest.mark.parametrize("max_version", VERSIONS)
def test_an_unconsumed_capsule_lets_go_of_the_array(max_version):
    array, owner = watched()
    capsule = to_capsule(array, max_version=max_version)
    del array
    gc.collect()
    assert owner() is not None
    del capsule
    gc.collect()
    assert owner() is None


@pytest.mark.slow
@pytest.mark.parametrize("exporter", [Exporter, OldExporter])
def test_the_array_lives_until_the_last_view_of_the_import_dies(exporter):
    array, owner = watched()
    result, _, _ = from_capsule_or_object(exporter(array))
    last = result.reshape(2, 3).T[::-1]
    del array, result
    gc.collect()
    assert owner() is not None
    assert last.tolist() == [[2, 5], [1, 4], [0, 3]]
    del last
    gc.collect()
    assert owner() is None


def test_exporting_and_importing_leave_reference_counts_as_they_were():
    array = numbers(ml_dtypes.bfloat16)
    exporter = Exporter(array)
    before = sys.getrefcount(array)
    for _ in range(100):
        from_capsule_or_object(exporter)
        to_capsule(array, max_version=(1, 2))
    gc.collect()
    assert sys.getrefcount(array) == before


def test_the_producers_deleter_runs_exactly_once():
    calls = []
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    deleter = prototype(calls.append)
    memory = (ctypes.c_uint16 * 3)(0x3F80, 0x4000, 0x4040)
    struct = _VersionedStruct(major=1, minor=0, flags=0)
    struct.deleter = ctypes.cast(deleter, ctypes.c_void_p)
    tensor = struct.tensor
    tensor.data, tensor.device_kind, tensor.rank = ctypes.addressof(memory), 1, 1
    tensor.shape = (ctypes.c_int64 * 1)(3)
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = 4, 16, 1
    new_capsule = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
    )(("PyCapsule_New", ctypes.pythonapi))
    capsule = new_capsule(ctypes.addressof(struct), b"dltensor_versioned", None)
    result, shared, read_only = from_capsule_or_object(capsule)
    assert (result.tolist(), shared, read_only) == ([1, 2, 3], True, False)
    assert (tensor.dtype.code, tensor.dtype.bits) == (4, 16)
    assert "used_dltensor_versioned" in repr(capsule)
    del capsule
    view = result[1:]
    del result
    assert calls == []
    del view
    assert calls == [ctypes.addressof(struct)]


def test_a_capsule_is_imported_once():
    capsule = to_capsule(numbers("float32"), max_version=(1, 0))
    first, _, _ = from_capsule_or_object(capsule)
    with pytest.raises(InteropError, match="not an unconsumed DLPack capsule"):
        from_capsule_or_object(capsule)
    assert first.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16], ids=named)
def test_read_only_memory_stays_read_only(dtype):
    array = numbers(dtype)
    array.flags.writeable = False
    parcel = _Parcel.of(to_capsule(array, max_version=(1, 0)))
    assert parcel.flags & READ_ONLY
    result, shared, read_only = from_capsule_or_object(Exporter(array))
    assert (shared, read_only, result.flags.writeable) == (True, True, False)
    with pytest.raises(InteropError, match=r"read-only, which max_version=None cannot express"):
        to_capsule(array)
    assert to_capsule(array, copy=True) is not None


@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16], ids=named)
def test_an_exported_copy_is_flagged_and_separate(dtype):
    array = numbers(dtype)
    capsule = to_capsule(array, max_version=(1, 0), copy=True)
    assert _Parcel.of(capsule).flags & IS_COPIED
    result, shared, read_only = from_capsule_or_object(capsule)
    assert (shared, read_only) == (False, False)
    assert not np.shares_memory(result, array)
    forbidden = to_capsule(array, max_version=(1, 0), copy=True)
    with pytest.raises(InteropError, match="copy=False forbids it"):
        from_capsule_or_object(forbidden, copy=False)
    assert not _Parcel.of(to_capsule(array, max_version=(1, 0), copy=False)).flags & IS_COPIED


@pytest.mark.parametrize("exporter", [Exporter, OldExporter])
def test_copy_decides_whether_an_import_shares(exporter):
    array = numbers("float32")
    for copy in (None, False):
        result, shared, _ = from_capsule_or_object(exporter(array), copy=copy)
        assert shared
        assert address(result) == address(array)
    result, shared, read_only = from_capsule_or_object(exporter(array), copy=True)
    assert (shared, read_only) == (False, False)
    result[0] = 9
    assert array[0] == 0


def test_numpy_arrays_of_narrow_floats_are_imported_directly():
    array = numbers(ml_dtypes.bfloat16)
    result, shared, _ = from_capsule_or_object(array)
    assert shared
    assert address(result) == address(array)


class Elsewhere(Exporter):
    """A producer on a GPU that can bring its data to the host."""

    def __dlpack_device__(self):
        return (2, 1)

    def __dlpack__(self, *, max_version=None, dl_device=None):
        assert dl_device == (1, 0)
        return to_capsule(self.array, max_version=max_version, copy=True)


def test_memory_of_another_device_is_named_and_refused():
    with pytest.raises(InteropError, match="the data is on cuda:1, which is not host memory"):
        from_capsule_or_object(Elsewhere(numbers("float32")))
    with pytest.raises(InteropError, match="cannot import to cuda:0"):
        from_capsule_or_object(Exporter(numbers("float32")), device=(2, 0))
    assert device_name((99, 3)) == "device kind 99:3"


def test_a_capsule_of_another_device_is_refused_and_freed():
    array, owner = watched()
    capsule = to_capsule(array, max_version=(1, 0))
    _Parcel.of(capsule).tensor.device_kind = 8
    with pytest.raises(InteropError, match="metal:0"):
        from_capsule_or_object(capsule)
    del capsule, array
    gc.collect()
    assert owner() is None


def test_a_producer_elsewhere_brings_its_data_where_the_device_is_named():
    array = numbers("float32")
    result, shared, _ = from_capsule_or_object(Elsewhere(array), device=(1, 0))
    assert not shared
    assert result.tolist() == array.tolist()
    with pytest.raises(InteropError, match="cuda:1"):
        from_capsule_or_object(Elsewhere(array), device=(1, 0), copy=False)


def test_pinned_host_memory_is_host_memory():
    array = numbers("float32")
    capsule = to_capsule(array, max_version=(1, 0))
    _Parcel.of(capsule).tensor.device_kind = 3
    result, shared, _ = from_capsule_or_object(capsule)
    assert shared
    assert address(result) == address(array)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros(2, object), "dtype object"),
        (np.zeros(2, ">f4"), "native byte order"),
        (np.zeros(2, "M8[s]"), "dtype datetime64"),
        (np.zeros(2, "i1,f4")["f1"], r"strides \(5,\)"),
    ],
)
def test_what_dlpack_cannot_express_is_refused(array, reason):
    with pytest.raises(InteropError, match=reason):
        to_capsule(array, max_version=(1, 0))


def test_streams_and_other_devices_are_refused_on_export():
    with pytest.raises(InteropError, match="stream is 7"):
        to_capsule(numbers("float32"), stream=7)
    with pytest.raises(InteropError, match="cannot be exported to cuda:0"):
        to_capsule(numbers("float32"), dl_device=(2, 0))
    assert to_capsule(numbers("float32"), dl_device=(1, 0)) is not None


def test_unknown_types_versions_and_objects_are_named():
    capsule = to_capsule(numbers("uint8"), max_version=(1, 0))
    _Parcel.of(capsule).tensor.dtype.code = 17
    with pytest.raises(InteropError, match="type code 17 of 8 bits and 1 lanes"):
        from_capsule_or_object(capsule)
    capsule = to_capsule(numbers("uint8"), max_version=(1, 0))
    _Parcel.of(capsule).versioned.major = 2
    with pytest.raises(InteropError, match=r"DLPack 2\.0, weft reads version 1"):
        from_capsule_or_object(capsule)
    with pytest.raises(InteropError, match="list has no __dlpack__"):
        from_capsule_or_object([1, 2])


def test_a_refusing_producer_is_named():
    class Refuses(Exporter):
        def __dlpack__(self, **keywords):
            raise BufferError("not today")

    with pytest.raises(InteropError, match="Refuses refuses to export: not today"):
        from_capsule_or_object(Refuses(None))


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=named)
def test_torch_and_weft_share_memory_both_ways(dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    array = numbers(dtype)
    tensor = torch.from_dlpack(Exporter(array))
    assert tensor.data_ptr() == address(array)
    assert str(tensor.dtype) == f"torch.{dtype.name}"
    tensor.view(torch.uint8)[0] = 1
    assert array.view(np.uint8)[0] == 1
    result, shared, read_only = from_capsule_or_object(tensor)
    assert (shared, read_only, result.dtype) == (True, False, dtype)
    assert address(result) == address(array)
    result.view(np.uint8)[0] = 0
    assert array.view(np.uint8)[0] == 0


def test_torch_keeps_the_array_and_the_array_keeps_torchs_tensor():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    array, owner = watched()
    tensor = torch.from_dlpack(Exporter(array))
    del array
    gc.collect()
    assert tensor.tolist() == [0, 1, 2, 3, 4, 5]
    del tensor
    gc.collect()
    assert owner() is None
    tensor = torch.arange(5, dtype=torch.bfloat16)
    result, _, _ = from_capsule_or_object(tensor)
    tensor[0] = 7
    del tensor
    gc.collect()
    assert result.tolist() == [7, 1, 2, 3, 4]


def test_torch_explains_why_a_tensor_with_gradient_is_not_exported():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(InteropError, match="require gradient"):
        from_capsule_or_object(torch.zeros(2, requires_grad=True))


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32", "complex64", *NARROW], ids=named)
def test_jax_and_weft_share_memory_both_ways(dtype):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    ours = np.zeros(256, np.dtype(dtype))
    ours = ours[-(address(ours) // ours.itemsize) % 64 :][:64]  # jax shares aligned memory only
    theirs = jax.numpy.from_dlpack(Exporter(ours))
    assert theirs.dtype == dtype
    assert theirs.unsafe_buffer_pointer() == address(ours)
    source = jax.numpy.arange(6).astype(dtype)
    result, shared, read_only = from_capsule_or_object(source)
    assert (shared, read_only, result.dtype) == (True, True, dtype)
    assert address(result) == source.unsafe_buffer_pointer()
    expected = np.asarray(source).tobytes()
    del source
    gc.collect()
    assert result.tobytes() == expected


@pytest.mark.slow
def test_capsules_and_views_that_live_until_the_interpreter_exits_are_harmless():
    program = """
        import sys
        import ml_dtypes, numpy as np
        from weft.core.tensor.dlpack import from_capsule_or_object, to_capsule
        array = np.ones(1000, ml_dtypes.bfloat16)
        sys.capsule = to_capsule(array, max_version=(1, 0))
        sys.view = from_capsule_or_object(to_capsule(array, max_version=(1, 0)))[0]
        capsule = to_capsule(array)
        used = to_capsule(array)
        view = from_capsule_or_object(used)
        print("leaving")
    """
    result = subprocess.run(
        [sys.executable, "-W", "error", "-X", "faulthandler", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "leaving\n", "")
