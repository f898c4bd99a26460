from typing import Any

import msgspec
import pytest
from runlog.small_log import COORDINATOR, NODES, OTHER_RUN, RUN, STRANGER

from shoal.coordinator.admission import Door, JoinToken, clean_name, judge, node_of, token_hash, wrong_run
from shoal.runlog.entries import Ban
from shoal.wire.messages import PROTOCOL, Hello, Proof, Refuse
from shoal.wire.signed import Signed, sign
from shoal.wire.work import does_work, find_work

A, NONCE = NODES[0], b"n" * 32
TOKENS = (JoinToken(sha256=token_hash("old"), expires_ms=1000), JoinToken(sha256=token_hash("secret")))


def _hello(**changes: Any) -> Hello:
    hello = Hello(
        protocol=PROTOCOL,
        run=RUN,
        public=A.public,
        token="secret",
        name="ann",
        address="",
        length=0,
        proof=sign(A, Proof(run=RUN, coordinator=COORDINATOR.node, nonce=NONCE)),
    )
    return msgspec.structs.replace(hello, **changes)


def _judge(hello: Hello, wall_ms: int = 500, *, is_member: bool = False) -> Refuse | None:
    return judge(
        hello,
        nonce=NONCE,
        run=RUN,
        coordinator=COORDINATOR.node,
        tokens=TOKENS,
        wall_ms=wall_ms,
        is_member=is_member,
    )


def _proof(signer: Any = A, **changes: Any) -> Signed:
    proof = Proof(run=RUN, coordinator=COORDINATOR.node, nonce=NONCE)
    return sign(signer, msgspec.structs.replace(proof, **changes))


def test_one_with_its_key_and_a_token_is_let_in() -> None:
    assert _judge(_hello()) is None and node_of(_hello()) == A.node
    assert _judge(_hello(token="old")) is None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protocol": PROTOCOL + 1}, "SH-JOIN-06"),
        ({"proof": _proof(STRANGER)}, "SH-JOIN-07"),
        ({"proof": _proof(nonce=b"old" * 10)}, "SH-JOIN-07"),
        ({"proof": _proof(coordinator=STRANGER.node)}, "SH-JOIN-07"),
        ({"proof": _proof(run=OTHER_RUN)}, "SH-JOIN-07"),
        ({"proof": Signed(b"", b"")}, "SH-JOIN-07"),
        ({"public": STRANGER.public}, "SH-JOIN-07"),
        ({"public": b"short"}, "SH-JOIN-07"),
        ({"run": OTHER_RUN, "proof": _proof(run=OTHER_RUN)}, "SH-JOIN-04"),
        ({"token": "wrong"}, "SH-JOIN-02"),
        ({"token": ""}, "SH-JOIN-02"),
        ({"token": "ö" * 10_000}, "SH-JOIN-02"),
    ],
)
def test_why_not(changes: dict[str, Any], code: str) -> None:
    refuse = _judge(_hello(**changes))
    assert refuse is not None and refuse.code == code and refuse.cause and refuse.next_step


def test_an_expired_token() -> None:
    refuse = _judge(_hello(token="old"), wall_ms=8000)
    assert refuse is not None and refuse.code == "SH-JOIN-03" and "7 s ago" in refuse.cause
    assert _judge(_hello(token="old"), wall_ms=1000) is None


def test_a_member_needs_no_token_but_its_key() -> None:
    assert _judge(_hello(token="wrong"), is_member=True) is None
    assert _judge(_hello(token="old"), wall_ms=8000, is_member=True) is None
    refuse = _judge(_hello(proof=_proof(STRANGER)), is_member=True)
    assert refuse is not None and refuse.code == "SH-JOIN-07"


def test_only_the_hash_is_kept() -> None:
    assert "secret" not in repr(TOKENS)


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("ann", "ann"),
        ("", "node"),
        ("  ", "node"),
        ("\x1b[31mred", "31mred"),
        ("a\nb", "ab"),
        ("x" * 99, "x" * 40),
        ("łódź-1_2.x y", "łódź-1_2.x y"),
        ("<script>", "script"),
    ],
)
def test_names_are_fit_to_print(name: str, clean: str) -> None:
    assert clean_name(name) == clean


def test_a_wrong_run_is_told_in_words() -> None:
    assert wrong_run(OTHER_RUN).code == "SH-JOIN-04" and OTHER_RUN[:12] in wrong_run(OTHER_RUN).cause


# --- beyond the token --------------------------------------------------------------------------------------

BAN = Ban(node=A.node, until_ms=60_500, reason="too loud")


def _at(door: Door, hello: Hello | None = None, *, is_member: bool = False) -> Refuse | None:
    return judge(
        hello or _hello(),
        nonce=NONCE,
        run=RUN,
        coordinator=COORDINATOR.node,
        tokens=TOKENS,
        wall_ms=500,
        is_member=is_member,
        door=door,
    )


def test_a_banned_node_is_told_until_when_why_and_what_to_do() -> None:
    for is_member in (True, False):
        refuse = _at(Door(ban=BAN), is_member=is_member)
        assert refuse is not None and refuse.code == "SH-JOIN-13"
        assert "60 s from now" in refuse.cause and "too loud" in refuse.cause and "unban" in refuse.next_step


def test_a_list_keeps_out_newcomers_who_are_not_on_it() -> None:
    refuse = _at(Door(allow=(STRANGER.node,)))
    assert refuse is not None and refuse.code == "SH-JOIN-14" and A.node in refuse.next_step
    assert _at(Door(allow=(A.node,))) is None
    assert _at(Door(allow=(STRANGER.node,)), is_member=True) is None


def test_work_is_asked_for_and_bound_to_the_node() -> None:
    refuse = _at(Door(work_bits=8))
    assert refuse is not None and (refuse.code, refuse.work_bits) == ("SH-JOIN-15", 8)
    work = find_work(RUN, A.node, 8)
    assert _at(Door(work_bits=8), _hello(work=work)) is None
    assert not does_work(OTHER_RUN, A.node, work, 16) and does_work(RUN, A.node, work, 8)


def test_the_organisers_own_word() -> None:
    refuse = _at(Door(unvouched="no stake"))
    assert refuse is not None and (refuse.code, refuse.cause) == ("SH-JOIN-16", "no stake")


@pytest.mark.parametrize(
    ("token", "used", "words"),
    [
        (JoinToken(sha256=token_hash("secret"), uses=2), 2, "its 2 nodes"),
        (JoinToken(sha256=token_hash("secret"), nodes=(STRANGER.node,)), 0, "other nodes"),
    ],
)
def test_a_tickets_scope(token: JoinToken, used: int, words: str) -> None:
    def judged(token: JoinToken, used: int) -> Refuse | None:
        return judge(
            _hello(),
            nonce=NONCE,
            run=RUN,
            coordinator=COORDINATOR.node,
            tokens=(token,),
            wall_ms=500,
            is_member=False,
            door=Door(used=used),
        )

    refuse = judged(token, used)
    assert refuse is not None and refuse.code == "SH-JOIN-02" and words in refuse.cause
    assert judged(msgspec.structs.replace(token, uses=used + 1, nodes=(A.node,)), used) is None
