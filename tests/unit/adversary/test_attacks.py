"""Each attack does what it says, by its seed, and can be written outside of the package."""

import sys
import types

import pytest
import torch

from shoal.adversary import ATTACKS, Adversary, Backdoor, Poisoner, Seen, find_attack
from shoal.base.errors import ShoalError
from shoal.data.dataset import Batch

SIZE = 2000
RANDOM = torch.Generator().manual_seed(1)
COMMON = torch.randn(SIZE, generator=RANDOM)
OTHERS = [COMMON + torch.randn(SIZE, generator=RANDOM) for _ in range(8)]
OWN = [COMMON + torch.randn(SIZE, generator=RANDOM) for _ in range(2)]
SENDERS = sorted(name for name, make in ATTACKS.items() if isinstance(make(), Adversary))


def seen(round_number: int = 0, member: int = 0, sent: torch.Tensor | None = None, seed: int = 5) -> Seen:
    return Seen(
        round=round_number,
        nodes=10,
        attackers=2,
        member=member,
        others=OTHERS,
        allies=OWN,
        sent=sent,
        seed=seed,
    )


def lie(name: str, **where: int) -> torch.Tensor:
    made = ATTACKS[name]()
    assert isinstance(made, Adversary)
    return made.corrupt(OWN[where.get("member", 0)], seen(**where))


@pytest.mark.parametrize("name", SENDERS)
def test_an_attack_is_repeated_by_its_seed_and_leaves_what_it_saw_alone(name: str) -> None:
    before = [values.clone() for values in (*OTHERS, *OWN)]
    assert torch.equal(lie(name, round_number=3), lie(name, round_number=3))
    assert all(map(torch.equal, (*OTHERS, *OWN), before))
    assert lie(name).shape == (SIZE,) and bool(torch.isfinite(lie(name)).all())


def test_the_simple_ones() -> None:
    assert torch.equal(lie("sign-flip"), -OWN[0])
    assert torch.equal(lie("scaling"), OWN[0] * 10)
    assert torch.equal(lie("zeros"), torch.zeros(SIZE))
    assert torch.equal(lie("mimic"), OTHERS[0])
    assert torch.allclose(lie("ipm"), torch.stack(OTHERS).mean(dim=0) * -0.5)


def test_noise_is_each_ones_own() -> None:
    assert float(lie("noise").std()) == pytest.approx(10 * float(OWN[0].square().mean().sqrt()), rel=0.1)
    assert not torch.equal(lie("noise"), lie("noise", member=1))
    assert not torch.equal(lie("noise"), lie("noise", round_number=1))
    assert not torch.equal(lie("noise"), lie("noise", seed=6))


def test_a_replay_is_of_the_first() -> None:
    made = ATTACKS["stale-replay"]()
    assert isinstance(made, Adversary)
    assert torch.equal(made.corrupt(OWN[0], seen()), OWN[0])
    assert torch.equal(made.corrupt(OWN[1], seen(1)), OWN[0])


def test_a_copy_is_nearly_anothers_each_round_anothers() -> None:
    first, second = lie("copy"), lie("copy", round_number=1)
    assert (first - OTHERS[0]).norm() < 0.02 * OTHERS[0].norm() and not torch.equal(first, OTHERS[0])
    assert (second - OTHERS[1]).norm() < 0.02 * OTHERS[1].norm()


def test_a_little_is_within_the_honest_ones_reach() -> None:
    stacked = torch.stack(OTHERS)
    away = (stacked.mean(dim=0) - lie("alie")) / stacked.std(dim=0, correction=0)
    assert torch.allclose(away, away[0].expand(SIZE), atol=1e-3) and 0 <= float(away[0]) < 1


def test_colluders_are_no_further_from_anybody_than_honest_ones_and_pull_back() -> None:
    stacked, found = torch.stack(OTHERS), lie("collusion")
    widest = torch.cdist(stacked, stacked).max()
    assert (stacked - found).norm(dim=1).max() <= widest * 1.001
    assert torch.dot(found, stacked.mean(dim=0)) < 0.5 * stacked.mean(dim=0).square().sum()
    assert torch.equal(found, lie("collusion", member=1))


def test_poisoned_feedback_sends_what_was_left_out_reversed() -> None:
    made = ATTACKS["poisoned-feedback"]()
    assert isinstance(made, Adversary)
    assert torch.equal(made.corrupt(OWN[0], seen()), OWN[0])
    sent = OWN[0] * 0.75
    wanted = made.corrupt(OWN[1], seen(1, sent=sent))
    kept = OWN[0] - sent  # Which the codec adds by itself.
    assert torch.allclose(wanted + kept, OWN[1] - 3 * kept, atol=1e-5)


def test_labels_are_flipped_and_the_batch_stays() -> None:
    made = ATTACKS["label-flip"]()
    assert isinstance(made, Poisoner)
    batch = Batch(torch.rand(4, 1, 8, 8), torch.tensor([0, 9, 4, 2]))
    assert made.poison(batch, 10).targets.tolist() == [9, 0, 5, 7]
    assert batch.targets.tolist() == [0, 9, 4, 2]


def test_a_backdoor_marks_half_of_a_batch() -> None:
    made = ATTACKS["backdoor"]()
    assert isinstance(made, Backdoor)
    batch = Batch(torch.rand(4, 1, 8, 8) * 0.5, torch.tensor([1, 2, 3, 4]))
    found = made.poison(batch, 10)
    assert found.targets.tolist() == [0, 2, 0, 4]
    assert bool((found.inputs[::2, :, -2:, -2:] == 1).all()) and torch.equal(found.inputs[1], batch.inputs[1])
    assert float(batch.inputs.max()) <= 0.5


def test_an_attack_of_another_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        def corrupt(self, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
            return honest * 2

    outside = types.ModuleType("outside_attack")
    outside.Mine, outside.Nothing = Mine, object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "outside_attack", outside)
    assert find_attack("outside_attack:Mine") is Mine
    for wrong in ("outside_attack:Nothing", "outside_attack:Other", "no_such_module:Mine", "sign-flop"):
        with pytest.raises(ShoalError) as refused:
            find_attack(wrong)
        assert refused.value.code == "SH-ATTACK-01"
