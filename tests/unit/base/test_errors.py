import re

import pytest

from shoal.base.errors import CODES, ShoalError


def test_an_error_says_code_cause_and_next_step() -> None:
    error = ShoalError("SH-JOIN-02", "the token is wrong", "ask for another")
    assert (error.code, error.cause, error.next_step) == (
        "SH-JOIN-02",
        "the token is wrong",
        "ask for another",
    )
    assert str(error) == "SH-JOIN-02: the token is wrong (ask for another)"


def test_an_unregistered_code_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError, match="SH-NOPE-01"):
        ShoalError("SH-NOPE-01", "", "")


def test_codes_are_of_one_form_and_explained() -> None:
    for code, meaning in CODES.items():
        assert re.fullmatch(r"SH-[A-Z]+-\d\d", code) and meaning
