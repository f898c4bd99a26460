import itertools

import pytest
import torch

from shoal.aggregate.ordering import network, sort_rows


@pytest.mark.parametrize("count", range(1, 11))
def test_the_network_sorts_all_zeros_and_ones_and_so_everything(count: int) -> None:
    columns = torch.tensor(list(itertools.product([0.0, 1.0], repeat=count))).T.contiguous()
    assert torch.equal(torch.stack(sort_rows(list(columns.clone()))), columns.sort(dim=0).values)


@pytest.mark.parametrize("count", [16, 31, 100])
def test_many_rows_of_more_than_a_block(count: int) -> None:
    rows = torch.randn(count, 5000, generator=torch.Generator().manual_seed(count))
    assert torch.equal(torch.stack(sort_rows(list(rows.clone()))), rows.sort(dim=0).values)


def test_sixteen_take_the_known_number_of_comparisons() -> None:
    assert len(network(16)) == 63
