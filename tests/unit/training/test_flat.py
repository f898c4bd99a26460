import torch

from shoal.training.flat import flatten, layout_of, load_into, pieces, spans, view_of
from shoal.training.models import build_model
from shoal.training.spec import GptSpec

from .conftest import CPU, TINY, Run


def test_parameters_and_gradients_are_views(text_run: Run) -> None:
    flat = flatten(build_model(TINY, text_run.manifest, 0), CPU)
    flat.params.fill_(2.0)
    flat.grads.fill_(3.0)
    for parameter in flat.model.parameters():
        assert parameter.grad is not None
        assert bool((parameter == 2.0).all()) and bool((parameter.grad == 3.0).all())


def test_flattening_keeps_the_values(text_run: Run) -> None:
    plain = build_model(TINY, text_run.manifest, 0)
    flat = flatten(build_model(TINY, text_run.manifest, 0), CPU)
    assert flat.params.shape == (flat.layout.numel,)
    for spec, (name, parameter) in zip(flat.layout.tensors, plain.named_parameters(), strict=True):
        assert spec.name == name and torch.equal(view_of(flat.params, spec), parameter)


def test_tied_weights_are_stored_once(text_run: Run) -> None:
    tied = flatten(build_model(GptSpec(layers=1, width=32, heads=2, tied=True), text_run.manifest, 0), CPU)
    names = [spec.name for spec in tied.layout.tensors]
    assert "embedding.weight" in names and "head.weight" not in names
    head, embedding = (getattr(tied.model, name).weight for name in ("head", "embedding"))
    assert head.data_ptr() == embedding.data_ptr()


def test_fragments_cover_the_vector(text_run: Run) -> None:
    layout = layout_of(build_model(TINY, text_run.manifest, 0), fragments=3)
    assert len(layout.fragments) == 3
    assert layout.fragments[0].start == 0 and layout.fragments[-1].stop == layout.numel


def test_loading_into_another_model(text_run: Run) -> None:
    flat = flatten(build_model(TINY, text_run.manifest, 0), CPU)
    other = build_model(TINY, text_run.manifest, 1)
    load_into(other, flat.params)
    ids = torch.arange(16).unsqueeze(0)
    assert torch.equal(other(ids), flat.model(ids))


def test_spans_join_neighbours_and_pieces_cut_them(text_run: Run) -> None:
    tensors = layout_of(build_model(TINY, text_run.manifest, 0)).tensors
    assert spans(tensors) == [(0, tensors[-1].offset + tensors[-1].numel)]
    assert len(spans(tensors[::2])) == len(tensors[::2])
    assert [piece.tolist() for piece in pieces(torch.arange(6), [1, 3, 2])] == [[0], [1, 2, 3], [4, 5]]
    assert spans([]) == [] and pieces(torch.arange(0), []) == []
