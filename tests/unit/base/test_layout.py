import itertools

import pytest

from shoal.base.layout import make_layout


@pytest.mark.parametrize("fragments", [1, 2, 3, 5, 50])
@pytest.mark.parametrize(
    "shapes", [[(3,)], [(2, 3), (4,), (1, 1)], [(), (5,)], [(100,), (1,), (1,)], [(1,)] * 9]
)
def test_fragments_cover_the_vector_once_at_tensor_borders(shapes, fragments: int) -> None:  # type: ignore[no-untyped-def]
    layout = make_layout([(f"t{i}", shape) for i, shape in enumerate(shapes)], fragments)
    parts = layout.fragments
    assert parts[0].start == 0 and parts[-1].stop == layout.numel == sum(t.numel for t in layout.tensors)
    assert all(one.stop == two.start for one, two in itertools.pairwise(parts))
    assert all(part.numel > 0 for part in parts) and 1 <= len(parts) <= fragments
    assert {part.start for part in parts} <= {tensor.offset for tensor in layout.tensors}
    assert len({part.name for part in parts}) == len(parts)


def test_equal_tensors_are_cut_evenly() -> None:
    layout = make_layout([(f"t{i}", (10,)) for i in range(6)], 3)
    assert [(p.start, p.stop) for p in layout.fragments] == [(0, 20), (20, 40), (40, 60)]


def test_nothing_has_no_fragments() -> None:
    assert make_layout([]).numel == 0 and make_layout([]).fragments == ()


@pytest.mark.parametrize(
    ("sizes", "fragments", "parts"),
    [
        ([37, 3, 65, 1, 8], 2, [40, 74]),
        ([37, 3, 65, 1, 8], 3, [40, 65, 9]),
        ([5, 1, 1, 1, 5], 2, [7, 6]),
        ([100, 1, 1], 3, [100, 1, 1]),
        ([1, 1, 1, 100], 2, [3, 100]),
        ([10] * 5, 3, [20, 20, 10]),
        ([4, 4], 5, [4, 4]),
    ],
)
def test_the_largest_fragment_is_as_small_as_can_be(
    sizes: list[int], fragments: int, parts: list[int]
) -> None:
    layout = make_layout([(f"t{i}", (size,)) for i, size in enumerate(sizes)], fragments)
    assert [part.numel for part in layout.fragments] == parts
