from shoal.base.memo import SLOT_BYTES, Memo

EACH = 50


def test_no_more_than_the_budget_is_kept_however_much_is_met() -> None:
    memo = Memo[int, str](20 * (EACH + SLOT_BYTES))
    for number in range(1000):
        memo.put(number, str(number), EACH)
        assert memo.get(number) == str(number)
        assert len(memo) <= 20
    assert [number for number in range(1000) if memo.get(number) is not None] == list(range(980, 1000))


def test_only_the_oldest_part_goes() -> None:
    memo = Memo[int, bool](20 * (EACH + SLOT_BYTES))
    for number in range(21):
        memo.put(number, False, EACH)
    assert [number for number in range(21) if memo.get(number) is False] == list(range(5, 21))


def test_what_is_too_large_is_not_kept_and_pushes_nothing_out() -> None:
    memo = Memo[str, int](1000)
    memo.put("small", 1, EACH)
    memo.put("large", 2, 500)
    assert memo.get("small") == 1 and memo.get("large") is None
    memo.clear()
    assert memo.get("small") is None and len(memo) == 0
