"""Objects in shared memory: what comes out is what went in, whatever its type and shape."""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedexp.client.network import tensors
from fedexp.errors import ConfigError
from fedexp.execute.shared_memory import ALIGN, INLINE, BufferAllocator, SharedBuffer, TensorPickle, opened
from fedexp.testing import tiny_net

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8,
    torch.bool, torch.complex64,
)  # fmt: skip


def there_and_back(*parts, copy=False):
    pickled = TensorPickle(*parts)
    arena = SharedBuffer(pickled.size)
    pickled.fill(arena)
    found = [opened(part, arena, copy=copy) for part in pickled.parts]
    return found[0] if len(found) == 1 else found


def same(one, two):
    assert type(one) is type(two)
    assert (one.dtype, one.shape) == (two.dtype, two.shape)
    assert torch.equal(one, two)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7,), (2, 3, 5)])
def test_every_type_and_shape(dtype, shape):
    value = (torch.arange(torch.Size(shape).numel()) % 2).reshape(shape).to(dtype)
    odd = torch.ones(3, dtype=torch.uint8)  # so that what follows would not be aligned by chance
    for copy in (False, True):
        first, second, third = there_and_back([odd, value, odd], copy=copy)
        same(first, odd)
        same(second, value)
        same(third, odd)


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(12.0).view(3, 4).T,
        torch.arange(12.0)[::3],
        torch.tensor(2.5).expand(4, 5),
        torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    ],
    ids=["transposed", "strided", "expanded", "channels last"],
)
def test_what_is_not_contiguous(value):
    same(there_and_back(value), value)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), max_size=8))
def test_places_are_aligned_and_do_not_overlap(kinds):
    pickled = TensorPickle([torch.zeros(shape, dtype=dtype) for dtype, shape in kinds])
    end = 0
    for tensor, (offset, *_) in pickled.tensors:
        assert offset % ALIGN == 0
        assert offset >= end
        end = offset + tensor.numel() * tensor.element_size()
    assert pickled.size >= end


def test_small_things_and_several_parts():
    tree = {"a": torch.ones(2), "b": {"c": (torch.zeros(1), "text", 3, None)}}
    one, two = there_and_back(tree, [torch.full((2,), 7.0)])
    same(one["a"], tree["a"])
    assert one["b"]["c"][1:] == ("text", 3, None)
    same(two[0], torch.full((2,), 7.0))


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3), np.arange(6.0)[::2], np.zeros((0, 2), np.int32), np.array([True, False])]
)
def test_arrays_of_numbers_lie_there_too(array):
    pickled = TensorPickle(array)
    assert pickled.size >= array.nbytes
    found = there_and_back([array, array])[1]
    assert found.dtype == array.dtype
    assert found.tolist() == array.tolist()


def test_other_arrays_are_pickled():
    assert there_and_back(np.array(["a", "b"])).tolist() == ["a", "b"]


def test_a_large_pickle_lies_there_too_and_a_small_one_is_sent():
    """A worker is started while the one before it has not read a byte: nothing large may wait in the socket."""
    large, small = list(range(INLINE)), "small"
    pickled = TensorPickle(large, small)
    assert len(pickle.dumps(pickled.parts)) < 1000
    assert there_and_back(large, small) == [large, small]


def test_a_tensor_with_a_gradient_comes_without():
    value = torch.ones(2, requires_grad=True) * 2
    found = there_and_back(value)
    assert not found.requires_grad
    assert found.tolist() == [2.0, 2.0]


def test_a_network_keeps_its_parameters():
    net = tiny_net(norm=True)
    found = there_and_back(net)
    assert all(isinstance(p, torch.nn.Parameter) for p in found.parameters())
    for name, value in tensors(net).items():
        assert torch.equal(value, tensors(found)[name])


def test_copied_or_in_place():
    pickled = TensorPickle({"x": torch.zeros(3)})
    arena = SharedBuffer(pickled.size)
    pickled.fill(arena)
    live, copied = opened(pickled.parts[0], arena)["x"], opened(pickled.parts[0], arena, copy=True)["x"]
    again = TensorPickle({"x": torch.ones(3)})
    again.fill(arena)
    assert live.tolist() == [1.0, 1.0, 1.0]
    assert copied.tolist() == [0.0, 0.0, 0.0]


def test_a_moving_tensor_lives_in_the_arena_from_then_on():
    moving, staying = torch.arange(4.0), torch.arange(4.0)
    pickled = TensorPickle([moving, staying])
    arena = SharedBuffer(pickled.size)
    pickled.fill(arena, moving={id(moving)})
    ours, theirs = opened(pickled.parts[0], arena)
    moving += 10
    staying += 10
    assert ours.tolist() == moving.tolist() == [10.0, 11.0, 12.0, 13.0]
    assert theirs.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_two_ends_of_an_arena_see_the_same_memory():
    one = SharedBuffer(1000)
    other = SharedBuffer(1000, os.dup(one.fd))
    place = (128, torch.float64, torch.Size((2, 2)), (2, 1))
    one.at(place).fill_(3.0)
    assert other.at(place).tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_an_arena_has_no_name_and_is_closed_when_nobody_needs_it():
    arena = SharedBuffer(10)
    fd, tensor = arena.fd, arena.at((0, torch.uint8, torch.Size((10,)), (1,)))
    assert not Path(f"/proc/self/fd/{fd}").readlink().exists()
    del arena
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert tensor.fill_(1).sum() == 10  # the memory is there as long as a tensor is in it


def test_a_sealed_arena_is_memory_without_its_file():
    arena = SharedBuffer(10)
    fd = arena.fd
    arena.seal()
    arena.seal()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert arena.at((0, torch.uint8, torch.Size((10,)), (1,))).fill_(1).sum() == 10


def test_what_no_other_process_can_import_is_refused_by_its_name():
    for source in ("class Mine: pass", "def mine(): pass"):
        scope = {"__name__": "__main__"}
        exec(source, scope)  # noqa: S102 - as a script or a notebook does
        thing = scope.get("Mine") or scope["mine"]
        with pytest.raises(ConfigError, match=rf"{thing.__name__} is defined in the script .*executor=serial"):
            TensorPickle({"component": thing})


def test_an_arena_is_never_empty():
    assert SharedBuffer(0).size == ALIGN
    assert TensorPickle("no tensors").size == 0


# ---------------------------------------------------------------- tensors that are made where they will be read
def test_what_was_made_in_the_room_is_not_copied_and_not_written_over():
    arena = SharedBuffer(1000)
    room = BufferAllocator(arena)
    made = [room(torch.zeros(shape)).fill_(n) for n, shape in enumerate([(2, 3), (0,), (5,)])]
    pickled = TensorPickle({"made": made, "else": torch.full((3,), 9.0)}, room=room)
    pickled.fill(arena)
    found = opened(pickled.parts[0], arena)
    assert [t.data_ptr() for t in found["made"]] == [t.data_ptr() for t in made]
    assert [t.tolist() for t in found["made"]] == [[[0.0] * 3] * 2, [], [2.0] * 5]
    assert found["else"].tolist() == [9.0] * 3


def test_a_room_that_is_full_gives_other_memory():
    arena = SharedBuffer(ALIGN)
    room = BufferAllocator(arena)
    made = [room(torch.zeros(4)).fill_(n) for n in range(20)]
    pickled = TensorPickle(made, room=room)
    assert pickled.size > arena.size
    larger = SharedBuffer(pickled.size)
    pickled.fill(larger)
    assert [t[0].item() for t in opened(pickled.parts[0], larger)] == list(range(20))


def test_channels_stay_last():
    value = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    assert (
        there_and_back(value).stride()
        == BufferAllocator(SharedBuffer(1000))(value).stride()
        == BufferAllocator()(value).stride()
        == value.stride()
    )
