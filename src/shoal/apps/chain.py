"""`shoal chain`: a local chain, the contracts, a run's job, settling and claiming. Disputes: `chain_disputes`.

In flow options, and a key from the environment or a keystore; out flow transactions, each named by its hash. Invariant:
no command that only looks needs a key; nothing here is needed for training.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from shoal.apps import progress
from shoal.apps.chain_disputes import add_disputes
from shoal.apps.chain_options import COIN, ChainPlace, JobOptions, RecordFile, Wallet
from shoal.apps.option_groups import HomeOption, JsonOption, RunName, RunOption, StorePlace, grouped, say

app = typer.Typer(no_args_is_help=True, help="Settle a run's credit on an EVM chain.")


@app.command()
def up(
    home: HomeOption = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any.")] = 8545,
    block_s: Annotated[float, typer.Option(min=0.05, help="Seconds between blocks.")] = 0.4,
    fresh: Annotated[bool, typer.Option(help="Begin anew instead of where it was stopped.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a local chain until Ctrl-C. Its accounts are funded, and their keys are public."""
    from shoal.apps.home import find_home, make_folder
    from shoal.chain.anvil import CHAIN_ID, Anvil, fetch_anvil, find_anvil

    root = find_home(home).root
    make_folder(root)
    program = find_anvil(root) or fetch_anvil(root, _tell)
    state = root / "local-chain.json"
    if fresh:
        state.unlink(missing_ok=True)
    stop = _stopped_by_signals()
    with Anvil(program, port=port, state=state, block_s=block_s) as chain:
        fields = {"chain": CHAIN_ID, "url": chain.url}
        _tell(json.dumps(fields) if as_json else f"local chain {CHAIN_ID} at {chain.url}\nready")
        stop.wait()


@app.command()
@grouped
def deploy(
    wallet: Wallet,
    chain: Annotated[
        str, typer.Option(help="anvil, monad, monad-testnet, base, optimism, arbitrum, ...")
    ] = "anvil",
    arbiter: Annotated[
        str, typer.Option(help="Who decides what nobody else can (default: the wallet).")
    ] = "",
    stake: Annotated[int, typer.Option(min=1, help="Least stake of a node, in wei.")] = COIN // 100,
    bond: Annotated[int, typer.Option(min=0, help="Bond of an accusation, in wei.")] = COIN // 1000,
    as_json: JsonOption = False,
) -> None:
    """Put NodeRegistry and TrainingRewards on a chain, and write chain.json."""
    from shoal.apps.chain_office import named_chain, open_desk
    from shoal.chain.config import write_config
    from shoal.chain.deploying import deploy as deploy_contracts
    from shoal.chain.signing import read_address

    with (
        open_desk(wallet, named_chain(chain, wallet.url or [])) as desk,
        progress.Bar("waiting for the chain"),
    ):
        judge = read_address(arbiter) if arbiter else desk.sender.account.address
        config = deploy_contracts(desk.sender, desk.outbox, judge, stake=stake, bond=bond)
        write_config(desk.home.root, config)
    fields = {"chain": config.chain.chain_id, "registry": config.registry, "rewards": config.rewards}
    say(fields, f"NodeRegistry {config.registry}\nTrainingRewards {config.rewards}", as_json)


@app.command()
@grouped
def job(wallet: Wallet, options: JobOptions, run: RunName = "", as_json: JsonOption = False) -> None:
    """Create and fund a run's job."""
    from shoal.apps.chain_office import checked_view, config_of, credit_of, job_terms, open_desk
    from shoal.chain.config import write_config
    from shoal.chain.deploying import create_job

    config = config_of(wallet)
    found = credit_of(wallet, run).account.run
    with open_desk(wallet, config.chain) as desk, progress.Bar("waiting for the chain"):
        checked_view(desk.rpc, config)
        terms, new = job_terms(options, desk.sender.account.address)
        config, made = create_job(desk.sender, desk.outbox, config, found, terms, new)
        write_config(desk.home.root, config)
    number = config.jobs[found].job
    fields = {"run": found, "job": number, "transaction": made.mined_hash}
    say(fields, f"job {number} for run {found[:12]}: {made.mined_hash}", as_json)


@app.command()
@grouped
def fund(
    wallet: Wallet,
    amount: Annotated[int, typer.Argument(min=1, help="Wei, or the token's smallest unit.")],
    run: RunName = "",
    as_json: JsonOption = False,
) -> None:
    """Add to a job's budget."""
    from shoal.apps.chain_office import config_of, credit_of, job_of, send_once, tell_sent
    from shoal.chain.contracts import erc20, shipped

    config = config_of(wallet)
    terms = job_of(config, credit_of(wallet, run).account.run)
    if terms.token:
        allow = erc20()["approve"].call(config.rewards, amount)
        send_once(wallet, config, "approve", allow, to=terms.token)
    data = shipped("TrainingRewards")["fundJob"].call(terms.job, amount if terms.token else 0)
    tell_sent("fund", send_once(wallet, config, "fund", data, value=0 if terms.token else amount), as_json)


@app.command()
@grouped
def register(
    wallet: Wallet,
    stake: Annotated[int, typer.Option(min=1, help="Wei.")] = COIN // 100,
    as_json: JsonOption = False,
) -> None:
    """Register this node on the chain, with a stake; the hash of its public key is its metadata."""
    from shoal.apps.chain_office import config_of, send_once, tell_sent
    from shoal.apps.home import find_home
    from shoal.chain.contracts import shipped
    from shoal.chain.keccak import keccak256
    from shoal.worlds.real.keys import load_or_create_identity

    config = config_of(wallet)
    identity = load_or_create_identity(find_home(wallet.home).node_key).first
    data = shipped("NodeRegistry")["registerNode"].call(keccak256(identity.public), 0)
    tell_sent(
        "register", send_once(wallet, config, "register", data, to=config.registry, value=stake), as_json
    )


@app.command()
def payout(
    address: Annotated[str, typer.Argument(help="Where this node wants its pay.")],
    run: RunOption = "",
    number: Annotated[int, typer.Option(min=0, help="Higher than of an earlier statement.")] = 0,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """On a node: the line to give to the organiser, signed with the node's key."""
    from shoal.apps.home import find_home
    from shoal.apps.logs_reading import find_log
    from shoal.chain.payouts import state_payout
    from shoal.worlds.real.keys import load_or_create_identity

    found = find_log(home, None, run, node=True).run
    identity = load_or_create_identity(find_home(home).node_key).first
    line = state_payout(identity, found, address, number)
    say({"run": found, "statement": line}, line, as_json)


@app.command()
@grouped
def pay(
    place: StorePlace,
    statement: Annotated[list[str], typer.Argument(help="Lines that nodes made with `shoal chain payout`.")],
    run: RunOption = "",
    as_json: JsonOption = False,
) -> None:
    """On the coordinator: keep where nodes want their pay."""
    from contextlib import closing

    from shoal.apps.chain_office import credit_of
    from shoal.apps.home import find_home
    from shoal.chain.payouts import keep_payout
    from shoal.wire.identity import node_id
    from shoal.worlds.real.sqlstore import SqlLogStore

    found = credit_of(place, run).account.run
    with closing(SqlLogStore(place.store or find_home(place.home).store_url, create=False)) as opened:
        words = [keep_payout(opened, found, text) for text in statement]
    paid = {node_id(word.public): word.address for word in words}
    lines = [f"{node[:12]} is paid at {address}" for node, address in paid.items()]
    say({"run": found, "paid": paid}, "\n".join(lines), as_json)


@app.command()
@grouped
def settle(
    wallet: Wallet,
    run: RunName = "",
    once: Annotated[bool, typer.Option(help="Stop when everything is settled.")] = False,
    every_s: Annotated[float, typer.Option(min=0.01, help="How often to look.")] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Bring the log's credit to the chain, epoch by epoch as the run goes, until it is told to stop."""
    from shoal.apps.chain_office import config_of, credit_of, open_desk, settlement_of
    from shoal.chain.service import run_settlement

    config, credit = config_of(wallet), credit_of(wallet, run)
    stop = _stopped_by_signals()
    tell: Callable[[str], None] = (lambda line: None) if as_json else _tell
    # Who settles until told to stop leaves a log, which has no use for a line every ten seconds.
    with open_desk(wallet, config.chain) as desk, progress.Bar("settling") if once else nullcontext():
        settlement = settlement_of(desk, config, credit)
        done = run_settlement(settlement, every_s=every_s, until_done=once, stop=stop, tell=tell)
    settled, epochs = (done.settled, done.epochs) if done else (0, 0)
    fields = {"run": credit.account.run, "settled": settled, "epochs": epochs}
    say(fields, f"{settled} of {epochs} epochs are on the chain", as_json)


@app.command()
@grouped
def status(place: ChainPlace, run: RunName = "", as_json: JsonOption = False) -> None:
    """A run's job as the chain has it."""
    from shoal.apps.chain_office import checked_view, config_of, credit_of, job_of
    from shoal.chain.rpc import Rpc

    config = config_of(place)
    found = credit_of(place, run).account.run
    fields = checked_view(Rpc(config.chain.urls), config).job(job_of(config, found).job)
    say(fields, "\n".join(f"{name:16} {value}" for name, value in fields.items()), as_json)


@app.command()
@grouped
def records(
    place: StorePlace,
    out: Annotated[Path, typer.Option(help="A folder for one JSON file an epoch.")],
    run: RunName = "",
    as_json: JsonOption = False,
) -> None:
    """Publish what epochs are made of, with proofs or vouchers: whoever has a file can claim, or dispute."""
    from shoal.apps.chain_office import config_of, credit_of, records_of
    from shoal.chain.epochs import record_fields

    config = config_of(place)
    found = credit_of(place, run).account.run
    out.mkdir(parents=True, exist_ok=True)
    made = records_of(place, config, found)
    for record in made:
        (out / f"{record.epoch:08}.json").write_text(json.dumps(record_fields(record), indent=1), "utf-8")
    say({"run": found, "records": len(made), "folder": str(out)}, f"{len(made)} records in {out}", as_json)


@app.command()
@grouped
def claim(wallet: Wallet, record: RecordFile, as_json: JsonOption = False) -> None:
    """Pay everybody in a record what is due. Anyone may: the money goes to the addresses in it."""
    from shoal.apps.chain_office import config_of, send_once, tell_sent
    from shoal.apps.chain_records import read_record
    from shoal.chain.modes import mode_called

    config, found = config_of(wallet), read_record(record)
    data = mode_called(found.mode).claim(found)
    tell_sent("claim", send_once(wallet, config, "claim", data), as_json)


def _stopped_by_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _tell(line: str) -> None:
    progress.say(line, sys.stdout)


add_disputes(app)
