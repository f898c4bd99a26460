import pytest
import torch

from shoal.strategy.merge import MERGE_RULES, Here, Mix


def test_mix_moves_a_share_and_keeps_progress() -> None:
    local, claimed, new = torch.tensor([5.0]), torch.tensor([4.0]), torch.tensor([8.0])
    here = Here(local=local, anchor=claimed, known=claimed)
    merged = MERGE_RULES["mix"](alpha=0.25).merge(here, new)
    assert merged.anchor.tolist() == [5.0] and merged.local.tolist() == [6.0]
    whole = MERGE_RULES["mix"](alpha=1.0).merge(here, new)
    assert whole.anchor.tolist() == [8.0] and whole.local.tolist() == [9.0]


@pytest.mark.parametrize("alpha", [0, -0.1, 1.1, float("nan"), float("inf")])
def test_alpha_is_a_share(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        Mix(alpha)


def _here(local: float, anchor: float, known: float, *, pending: bool = False) -> Here:
    values = [torch.tensor([value]) for value in (local, anchor, known)]
    return Here(local=values[0], anchor=values[1], known=values[2], pending=pending)


@pytest.mark.parametrize("kind", ["replace", "mix", "add-delta"])
def test_an_update_is_what_was_trained_since_the_anchor(kind: str) -> None:
    made = MERGE_RULES[kind]().make(_here(7, 5, 1))
    assert made.update.tolist() == [-2.0] and made.local.tolist() == [7.0]


def test_add_delta_keeps_what_is_on_its_way_until_it_is_settled() -> None:
    rule = MERGE_RULES["add-delta"]()
    # Known 10; three steps sent (anchor 13), one more since (14); the global version moves on by 2 without them.
    pending = rule.merge(_here(14, 13, 10, pending=True), torch.tensor([12.0]))
    assert (pending.local.item(), pending.anchor.item()) == (16.0, 15.0)
    # Then they are in it: from now on the global version is all there is to know of them.
    settled = rule.merge(_here(16, 15, 12), torch.tensor([13.5]))
    assert (settled.local.item(), settled.anchor.item()) == (14.5, 13.5)


def test_elastic_gives_what_it_sends() -> None:
    rule = MERGE_RULES["elastic"](alpha=0.25)
    made = rule.make(_here(8, 0, 4))
    assert made.update.item() == -1.0 and made.local.item() == 7.0
    centre = 4 - made.update.item()  # The outer step of one node: minus the update.
    assert centre + made.local.item() == 4 + 8, "their sum changes by training only"
    merged = rule.merge(_here(7, 7, 4), torch.tensor([5.0]))
    assert merged.local.item() == 7.0, "a new centre moves nobody before the next pull"


@pytest.mark.parametrize("kind", ["mix", "add-delta", "elastic"])
def test_who_keeps_progress(kind: str) -> None:
    assert MERGE_RULES[kind]().keeps_progress and not MERGE_RULES["replace"]().keeps_progress
