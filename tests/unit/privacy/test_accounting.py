"""What releases cost: the same as two other accountants say, and safe on both sides of every search."""

import pytest

from shoal.base.errors import ShoalError
from shoal.privacy.accounting import (
    ORDERS,
    Mechanism,
    _one_release,
    epsilon_of,
    noise_within,
    releases_within,
)

CASES = [(0.8, 0.05, 200, 1e-5), (2.0, 0.25, 120, 1e-5), (2.0, 0.01, 5000, 1e-6), (3.0, 1.0, 20, 1e-5)]


@pytest.mark.parametrize(("noise", "rate", "steps", "delta"), CASES)
def test_opacus_comes_to_the_same_epsilon(noise: float, rate: float, steps: int, delta: float) -> None:
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    for _ in range(steps):
        theirs.step(noise_multiplier=noise, sample_rate=rate)
    # It chooses other orders, and computes fractional ones in another way.
    ours = epsilon_of(Mechanism(noise, rate), steps, delta)
    assert ours == pytest.approx(theirs.get_epsilon(delta), rel=0.01)


@pytest.mark.parametrize(("noise", "rate"), [(0.8, 0.05), (2.0, 0.25), (2.0, 0.01), (3.0, 1.0)])
def test_at_whole_orders_opacus_comes_to_the_same_divergences(noise: float, rate: float) -> None:
    from opacus.accountants.analysis.rdp import compute_rdp

    ours = dict(zip(*_one_release(Mechanism(noise, rate)), strict=True))
    whole = [order for order in ours if order == int(order)]
    theirs = compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=whole)
    assert len(whole) > 50 and [ours[order] for order in whole] == pytest.approx(list(theirs), rel=1e-6)


@pytest.mark.parametrize(("noise", "rate", "steps", "delta"), CASES)
def test_dp_accounting_itself_comes_to_the_same_epsilon(
    noise: float, rate: float, steps: int, delta: float
) -> None:
    import dp_accounting
    from dp_accounting import rdp

    event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(noise)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    theirs = rdp.RdpAccountant(ORDERS).compose(event, steps).get_epsilon(delta)
    assert epsilon_of(Mechanism(noise, rate), steps, delta) == pytest.approx(theirs, rel=1e-9)


def test_the_tighter_accountant_by_loss_distributions_never_says_more() -> None:
    import dp_accounting
    from dp_accounting import pld

    event = dp_accounting.PoissonSampledDpEvent(0.25, dp_accounting.GaussianDpEvent(1.5))
    tight = pld.PLDAccountant().compose(event, 60).get_epsilon(1e-5)
    ours = epsilon_of(Mechanism(1.5, 0.25), 60, 1e-5)
    assert tight <= ours <= 1.25 * tight


def test_no_release_costs_nothing_and_each_one_more_costs_more() -> None:
    spent = [epsilon_of(Mechanism(1.0, 0.1), count, 1e-5) for count in (0, 1, 10, 100)]
    assert spent[0] == 0 and spent == sorted(set(spent))


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 8.0])
@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_noise_is_found_that_keeps_the_budget_and_hardly_more(epsilon: float, rate: float) -> None:
    noise = noise_within(rate, 100, epsilon, 1e-5)
    assert epsilon_of(Mechanism(noise, rate), 100, 1e-5) <= epsilon
    assert epsilon_of(Mechanism(noise / 1.01, rate), 100, 1e-5) > epsilon


def test_releases_within_a_budget_are_the_most_that_fit() -> None:
    mechanism = Mechanism(1.2, 0.2)
    most = releases_within(mechanism, 8.0, 1e-5)
    assert epsilon_of(mechanism, most, 1e-5) <= 8.0 < epsilon_of(mechanism, most + 1, 1e-5)
    assert releases_within(Mechanism(0.1), 0.1, 1e-5) == 0


def test_what_no_noise_can_do_is_refused_with_the_numbers() -> None:
    with pytest.raises(ShoalError, match=r"1000000 releases cost epsilon 0\.0001") as refused:
        noise_within(1.0, 1_000_000, 1e-4, 1e-9)
    assert refused.value.code == "SH-PRIVACY-01"
