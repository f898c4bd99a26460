import gc
import os

import pytest
import torch

from shoal.base import vectors
from shoal.base.vectors import KEEP_BYTES, LEAST_BYTES, copy_of, like

LONG = LEAST_BYTES // 4 + 123


@pytest.fixture(autouse=True)
def nothing_idle() -> None:
    gc.collect()
    vectors._idle.clear()


def test_memory_is_used_again_once_nobody_looks_at_it() -> None:
    first = like(torch.ones(LONG))
    place = first.data_ptr()
    view = first[1000:].view(-1)
    del first
    assert copy_of(torch.ones(LONG)).data_ptr() != place, "a view still looks at it"
    del view
    again = [copy_of(torch.full((LONG,), 7.0)) for _ in range(2)]
    assert place in {tensor.data_ptr() for tensor in again}
    assert all(bool((tensor == 7).all()) for tensor in again)


def test_much_longer_memory_is_not_taken_for_something_short() -> None:
    like(torch.empty(8 * LONG))
    short = like(torch.empty(LONG))
    assert len(vectors._idle) == 1 and short.numel() == LONG


def test_no_more_lies_idle_than_may() -> None:
    many = [like(torch.empty(KEEP_BYTES // 16)) for _ in range(6)]
    many.clear()
    assert sum(map(len, vectors._idle)) == KEEP_BYTES


OTHERS = [
    torch.ones(7),
    torch.ones(LONG, dtype=torch.float64),
    torch.ones(2, LONG),
    torch.ones(LONG, device="meta"),
]


@pytest.mark.parametrize("values", OTHERS, ids=("short", "float64", "matrix", "elsewhere"))
def test_anything_else_comes_from_torch(values: torch.Tensor) -> None:
    made = like(values)
    assert (made.shape, made.dtype, made.device) == (values.shape, values.dtype, values.device)
    del made
    assert not vectors._idle


def test_a_process_that_is_forked_off_has_its_own() -> None:
    mine = copy_of(torch.ones(LONG))
    child = os.fork()
    if not child:
        mine.numpy()[:] = 2
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert bool((mine == 1).all())
