"""`shoal chain check | resolve | redo | sign | overrule | prove | bond | withdraw`: roots that the log does not give.

In flow an epoch's record, this machine's copy of the log and a wallet; out flow transactions and signatures. Invariant:
nobody signs for a root that the own log does not give.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shoal.apps.chain_options import RecordFile, Wallet
from shoal.apps.option_groups import JsonOption, NodeOption, RunName, grouped, say


def add_disputes(app: typer.Typer) -> None:
    for command in (check, resolve, redo, sign, overrule, prove, bond, withdraw):
        app.command()(grouped(command))


def check(
    wallet: Wallet,
    record: RecordFile,
    dispute: Annotated[
        bool, typer.Option(help="If it is wrong, dispute it on the chain, with the bond.")
    ] = False,
    node: NodeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare a record and the root on the chain with this machine's copy of the log."""
    from shoal.apps.chain_office import checked_view, config_of, credit_of, send_once, tell_sent
    from shoal.apps.chain_records import read_record, wrong_amounts
    from shoal.chain.keccak import keccak256
    from shoal.chain.rpc import Rpc

    config, found = config_of(wallet), read_record(record)
    view = checked_view(Rpc(config.chain.urls), config)
    wrong = wrong_amounts(found, credit_of(wallet, found.run, node=node))
    if found.mode == "roots" and view.root(found.job, found.epoch) != found.tree().root:
        wrong.append("the root on the chain is not this record's")
    line = "; ".join(wrong) or "the record is what the log gives"
    say({"epoch": found.epoch, "wrong": wrong}, line, as_json)
    if wrong and dispute:
        evidence = keccak256(bytes.fromhex(found.head))
        data = view.interface["disputeEpoch"].call(found.job, found.epoch, evidence)
        value = int(view.job(found.job)["bond"])
        tell_sent("dispute", send_once(wallet, config, "dispute", data, value=value), as_json)
    if wrong:
        raise typer.Exit(1)


def resolve(
    wallet: Wallet,
    stands: Annotated[bool, typer.Option("--stands/--falls", help="The arbiter's decision.")],
    run: RunName = "",
    as_json: JsonOption = False,
) -> None:
    """As the arbiter: decide the dispute of a run's job."""
    from shoal.apps.chain_office import config_of, credit_of, job_of, send_once, tell_sent
    from shoal.chain.contracts import shipped

    config = config_of(wallet)
    number = job_of(config, credit_of(wallet, run).account.run).job
    data = shipped("TrainingRewards")["resolveDispute"].call(number, stands)
    tell_sent("resolve", send_once(wallet, config, "resolve", data), as_json)


def redo(
    wallet: Wallet,
    record: RecordFile,
    out: Annotated[Path, typer.Option(help="Where the right one goes.")],
    before: Annotated[
        Path | None,
        typer.Option(exists=True, help="The record before, if nodes have moved to other addresses."),
    ] = None,
    node: NodeOption = False,
    as_json: JsonOption = False,
) -> None:
    """The record of the same epoch as this machine's copy of the log gives it."""
    from shoal.apps.chain_office import credit_of
    from shoal.apps.chain_records import read_record, right_record
    from shoal.chain.epochs import record_fields

    found, known = read_record(record), read_record(before) if before else None
    right = right_record(found, known, credit_of(wallet, found.run, node=node))
    out.write_text(json.dumps(record_fields(right), indent=1), "utf-8")
    fields = {"run": right.run, "epoch": right.epoch, "total": str(right.total), "file": str(out)}
    say(fields, f"epoch {right.epoch} comes to {right.total}: {out}", as_json)


def sign(wallet: Wallet, record: RecordFile, node: NodeOption = False, as_json: JsonOption = False) -> None:
    """As a staker: the line with your word for a record's root, if your log gives it."""
    from shoal.apps.chain_office import config_of, credit_of
    from shoal.apps.chain_records import read_record, wrong_amounts
    from shoal.base.errors import ShoalError
    from shoal.chain.config import domain_of
    from shoal.chain.keys import load_account
    from shoal.chain.words import sign_root

    config, found = config_of(wallet), read_record(record)
    wrong = wrong_amounts(found, credit_of(wallet, found.run, node=node))
    if wrong:
        raise ShoalError("SH-CHAIN-11", f"the log gives another root: {wrong[0]}", "sign what `redo` writes")
    domain = domain_of(config.chain.chain_id, config.rewards)
    line = "0x" + sign_root(load_account(wallet.keystore), domain, found).hex()
    say({"epoch": found.epoch, "signature": line}, line, as_json)


def overrule(
    wallet: Wallet,
    record: RecordFile,
    signature: Annotated[list[str], typer.Argument(help="Lines of `shoal chain sign`, of enough stake.")],
    as_json: JsonOption = False,
) -> None:
    """Put a record's root in the place of the disputed one, by the signatures of stakers. Anyone may."""
    from shoal.apps.chain_office import config_of, send_once, tell_sent
    from shoal.apps.chain_records import in_order, read_record
    from shoal.chain.config import domain_of
    from shoal.chain.contracts import shipped
    from shoal.chain.words import root_digest

    config, found = config_of(wallet), read_record(record)
    digest = root_digest(domain_of(config.chain.chain_id, config.rewards), found)
    data = shipped("TrainingRewards")["resolveByQuorum"].call(
        found.job, found.tree().root, found.total, bytes.fromhex(found.head), in_order(digest, signature)
    )
    tell_sent("overrule", send_once(wallet, config, "overrule", data), as_json)


def prove(
    wallet: Wallet,
    record: RecordFile,
    earlier: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A record that stands.")],
    as_json: JsonOption = False,
) -> None:
    """End a dispute by the leaves themselves: somebody has less in the disputed root than in an earlier one."""
    from shoal.apps.chain_office import config_of, send_once, tell_sent
    from shoal.apps.chain_records import decrease, read_record
    from shoal.chain.contracts import shipped

    config = config_of(wallet)
    data = shipped("TrainingRewards")["proveDecrease"].call(
        *decrease(read_record(record), read_record(earlier))
    )
    tell_sent("prove", send_once(wallet, config, "prove", data), as_json)


def bond(
    wallet: Wallet,
    amount: Annotated[int, typer.Argument(min=1, help="Wei.")],
    run: RunName = "",
    as_json: JsonOption = False,
) -> None:
    """Leave a bond for a job's disputes: after a lost one, no root is taken without."""
    from shoal.apps.chain_office import config_of, credit_of, job_of, send_once, tell_sent
    from shoal.chain.contracts import shipped

    config = config_of(wallet)
    data = shipped("TrainingRewards")["depositBond"].call(
        job_of(config, credit_of(wallet, run).account.run).job
    )
    tell_sent("bond", send_once(wallet, config, "bond", data, value=amount), as_json)


def withdraw(
    wallet: Wallet,
    token: Annotated[str, typer.Option(help="An ERC-20 (default: the chain's own coin, and bonds).")] = "",
    as_json: JsonOption = False,
) -> None:
    """Fetch what the contract keeps for this wallet: bonds that were won, and pay that could not be sent."""
    from shoal.apps.chain_office import config_of, send_once, tell_sent
    from shoal.chain.contracts import shipped
    from shoal.chain.deploying import NO_TOKEN
    from shoal.chain.keys import load_account
    from shoal.chain.signing import read_address

    config, mine = config_of(wallet), load_account(wallet.keystore).address
    data = shipped("TrainingRewards")["withdraw"].call(read_address(token) if token else NO_TOKEN, mine)
    tell_sent("withdraw", send_once(wallet, config, "withdraw", data), as_json)
