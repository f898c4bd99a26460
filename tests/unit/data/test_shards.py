import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.base.errors import ShoalError
from shoal.data.shards import ALIGN, MAGIC, decode_arrays, encode_arrays

DTYPES = st.sampled_from([np.uint8, np.uint16, np.uint32, np.int64, np.float32])
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(max_dims=4, max_side=5)))


@given(st.dictionaries(st.text(max_size=8), ARRAYS, max_size=4))
def test_round_trip(arrays: dict[str, np.ndarray]) -> None:
    decoded = decode_arrays(encode_arrays(arrays))
    assert decoded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert decoded[name].dtype == array.dtype and decoded[name].shape == array.shape
        assert decoded[name].tobytes() == array.tobytes()


def test_one_set_of_arrays_has_one_encoding() -> None:
    a, b = np.arange(3, dtype=np.uint8), np.ones((2, 2), dtype=np.float32)
    assert encode_arrays({"a": a, "b": b}) == encode_arrays({"b": b, "a": a})


def test_arrays_are_read_only_views() -> None:
    data = encode_arrays({"a": np.arange(1000, dtype=np.uint16)})
    array = decode_arrays(data)["a"]
    assert not array.flags.writeable and not array.flags.owndata


@given(st.binary(max_size=300))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(ShoalError, match="SH-DATA-03"):
        decode_arrays(data)


@given(st.data())
def test_a_damaged_header_never_crashes(data: st.DataObject) -> None:
    good = bytearray(encode_arrays({"tokens": np.arange(50, dtype=np.uint8)}))
    good[data.draw(st.integers(min_value=0, max_value=ALIGN - 1))] = data.draw(st.integers(0, 255))
    try:
        arrays = decode_arrays(bytes(good))
    except ShoalError as error:
        assert error.code == "SH-DATA-03"
    else:
        assert sum(array.nbytes for array in arrays.values()) <= len(good)


@pytest.mark.parametrize("cut", [1, ALIGN, ALIGN + 1])
def test_truncated_or_extended_is_refused(cut: int) -> None:
    data = encode_arrays({"tokens": np.arange(200, dtype=np.uint8)})
    for bad in (data[:-cut], data + b"\0" * cut):
        with pytest.raises(ShoalError, match="SH-DATA-03"):
            decode_arrays(bad)


@pytest.mark.parametrize("shape", [[2**40], [-1], [-4, -4], [2**62, 4], [2**63 - 1, 2**63 - 1, 2**63 - 1]])
def test_announced_sizes_are_checked_before_use(shape: list[int]) -> None:
    header = msgspec.msgpack.encode({"arrays": [{"name": "x", "dtype": "uint8", "shape": shape}]})
    data = (MAGIC + len(header).to_bytes(4, "little") + header).ljust(ALIGN * 2, b"\0")
    with pytest.raises(ShoalError, match="SH-DATA-03"):
        decode_arrays(data)


def test_other_types_cannot_be_stored() -> None:
    with pytest.raises(msgspec.ValidationError):
        encode_arrays({"a": np.array([1 + 2j])})
