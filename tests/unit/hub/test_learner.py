"""A hub's update is what its region trained, whatever the parent did meanwhile."""

import torch
from node.test_learner import ITEMS, LAYOUT, Ruler, _values
from runlog.small_log import small_recipe

from shoal.base.ids import BlobId
from shoal.hub.learner import HubLearner
from shoal.node.learner import Global
from shoal.node.progress import Unsettled


def _all(value: float) -> torch.Tensor:
    return torch.full((12,), value)


def _hub(merge: str = "add-delta") -> HubLearner:
    strategy = {"preset": "halos", "codec": {"kind": "none"}, "merge": {"kind": merge}}
    learner = HubLearner(Ruler(LAYOUT), small_recipe(strategy=strategy), ITEMS, lambda: None)
    learner.start_over(_all(10.0))
    learner.adopt(Global(params=_all(10.0)))
    return learner


def _claim(learner: HubLearner, region: float, sequence: int = 0) -> float:
    learner.follow(_all(region))
    values = _values(learner.make_update((0, 1)).blob)
    learner.sent(Unsettled(sequence, 1, BlobId("b"), (0, 1)))
    return float(values[0])


def test_an_update_is_what_the_region_trained() -> None:
    learner = _hub()
    assert learner.news() is None
    assert _claim(learner, 13.0) == -3.0
    assert learner.news() is None


def test_news_of_others_are_brought_and_not_claimed() -> None:
    learner = _hub()
    _claim(learner, 13.0)
    learner.adopt(Global(params=_all(12.0), position=3, fragments=(0, 1)), working=True, settled=-1)
    news = learner.news()
    assert news is not None and news.tolist() == [2.0] * 12, "the parent moved on without the claim"
    assert _claim(learner, 14.0, 1) == -1.0, "before the news are brought"
    learner.brought()
    assert _claim(learner, 17.0, 2) == -1.0, "while they are in the region: 14, 2 of news, 1 trained"


def test_what_is_settled_becomes_what_the_parent_made_of_it() -> None:
    learner = _hub()
    _claim(learner, 13.0)
    learner.adopt(Global(params=_all(11.5), position=3, fragments=(0, 1)), settled=0)
    news = learner.news()
    assert news is not None and news.tolist() == [-1.5] * 12
    learner.brought()
    assert _claim(learner, 12.0, 1) == -0.5


def test_a_state_that_was_undone_or_skipped_leaves_the_regions_work() -> None:
    learner = _hub()
    learner.forget()
    learner.adopt(Global(params=_all(10.0)))
    assert _claim(learner, 13.0) == -3.0


def test_it_goes_on_after_a_restart_with_news_that_were_not_brought() -> None:
    learner = _hub()
    _claim(learner, 13.0)
    learner.adopt(Global(params=_all(11.5), position=3, fragments=(0, 1)), settled=0)
    kept = learner.place(4, None)
    assert kept is not None and kept.claimed == 4
    strategy = {"preset": "halos", "codec": {"kind": "none"}}
    again = HubLearner(Ruler(LAYOUT), small_recipe(strategy=strategy), ITEMS, lambda: None)
    again.start_over(_all(14.0))  # The region went on by one.
    again.resume(kept)
    news = again.news()
    assert news is not None and news.tolist() == [-1.5] * 12
    assert _claim(again, 15.0, 1) == -2.0


def test_a_region_that_lost_its_news_is_brought_back_to_the_parent() -> None:
    learner = _hub()
    learner.start_over(_all(4.0))
    news = learner.news()
    assert news is not None and news.tolist() == [6.0] * 12
