"""`shoal chain`: a local chain, the contracts, a run's job, settling, claiming, disputing.

In flow options, and a key from the environment or a keystore; out flow transactions, each named by its hash. Invariant:
no command that only looks needs a key; nothing here is needed for training.
"""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.apps.logs import HomeOption, JsonOption, NodeOption, RunName, StoreOption

app = typer.Typer(no_args_is_help=True, help="Settle a run's credit on an EVM chain.")

Urls = Annotated[
    list[str] | None, typer.Option("--url", help="RPC URL instead of the preset's (repeatable).")
]
Keystore = Annotated[Path | None, typer.Option(help="Keystore file; its password in SHOAL_CHAIN_PASSWORD.")]
COIN = 10**18


@app.command()
def up(
    home: HomeOption = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any.")] = 8545,
    block_s: Annotated[float, typer.Option(min=0.05, help="Seconds between blocks.")] = 0.4,
    fresh: Annotated[bool, typer.Option(help="Begin anew instead of where it was stopped.")] = False,
) -> None:
    """Run a local chain until Ctrl-C. Its accounts are funded, and their keys are public."""
    from shoal.apps.home import find_home, make_folder
    from shoal.chain.anvil import CHAIN_ID, Anvil, fetch_anvil, find_anvil

    root = find_home(home).root
    make_folder(root)
    program = find_anvil(root) or fetch_anvil(root, lambda line: print(line, flush=True))
    state = root / "local-chain.json"
    if fresh:
        state.unlink(missing_ok=True)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with Anvil(program, port=port, state=state, block_s=block_s) as chain:
        print(f"local chain {CHAIN_ID} at {chain.url}\nready", flush=True)
        stop.wait()


@app.command()
def deploy(
    chain: Annotated[
        str, typer.Option(help="anvil, monad, monad-testnet, base, optimism, arbitrum, ...")
    ] = "anvil",
    arbiter: Annotated[
        str, typer.Option(help="Who decides what nobody else can (default: the wallet).")
    ] = "",
    stake: Annotated[int, typer.Option(min=1, help="Least stake of a node, in wei.")] = COIN // 100,
    bond: Annotated[int, typer.Option(min=0, help="Bond of an accusation, in wei.")] = COIN // 1000,
    home: HomeOption = None,
    store: StoreOption = None,
    url: Urls = None,
    keystore: Keystore = None,
    as_json: JsonOption = False,
) -> None:
    """Put NodeRegistry and TrainingRewards on a chain, and write chain.json."""
    from shoal.apps.chain_office import named_chain, open_desk
    from shoal.chain.config import write_config
    from shoal.chain.deploying import deploy as deploy_contracts
    from shoal.chain.signing import read_address

    with open_desk(home, named_chain(chain, url or []), keystore, store) as desk:
        judge = read_address(arbiter) if arbiter else desk.sender.account.address
        config = deploy_contracts(desk.sender, desk.outbox, judge, stake=stake, bond=bond)
        write_config(desk.home.root, config)
    fields = {"chain": config.chain.chain_id, "registry": config.registry, "rewards": config.rewards}
    _say(fields, f"NodeRegistry {config.registry}\nTrainingRewards {config.rewards}", as_json)


@app.command()
def job(
    run: RunName = "",
    budget: Annotated[int, typer.Option(min=1, help="What the job may pay, in wei.")] = COIN,
    wei_per_micro: Annotated[int, typer.Option(min=1, help="Wei for a millionth of a credit.")] = 10**9,
    epoch_cap: Annotated[int, typer.Option(min=0, help="Most for an epoch's time; 0: the budget.")] = 0,
    epoch_s: Annotated[int, typer.Option(min=1, help="An epoch's length of time.")] = 3600,
    window_s: Annotated[int, typer.Option(min=0, help="How long a root may be disputed.")] = 0,
    bond: Annotated[int, typer.Option(min=0, help="Bond of a dispute, in wei.")] = COIN // 1000,
    arbiter: Annotated[str, typer.Option(help="Who decides disputes (default: the wallet).")] = "",
    quorum_percent: Annotated[int, typer.Option(min=0, max=100, help="Of all stake, to decide instead.")] = 0,
    rounds_per_epoch: Annotated[int, typer.Option(min=1, help="Rounds in each root.")] = 1,
    home: HomeOption = None,
    store: StoreOption = None,
    url: Urls = None,
    keystore: Keystore = None,
    as_json: JsonOption = False,
) -> None:
    """Create and fund a run's job."""
    from shoal.apps.chain_office import checked_view, config_of, credit_of, open_desk
    from shoal.chain.config import write_config
    from shoal.chain.deploying import create_job
    from shoal.chain.signing import read_address

    config = config_of(home, url or [])
    found = credit_of(home, store, run).account.run
    with open_desk(home, config.chain, keystore, store) as desk:
        checked_view(desk.rpc, config)
        config, made = create_job(
            desk.sender,
            desk.outbox,
            config,
            found,
            wei_per_micro=wei_per_micro,
            budget=budget,
            epoch_cap=epoch_cap or budget,
            epoch_s=epoch_s,
            window_s=window_s,
            bond=bond,
            arbiter=read_address(arbiter) if arbiter else desk.sender.account.address,
            quorum_percent=quorum_percent,
            rounds_per_epoch=rounds_per_epoch,
        )
        write_config(desk.home.root, config)
    number = config.jobs[found].job
    fields = {"run": found, "job": number, "transaction": made.mined_hash}
    _say(fields, f"job {number} for run {found[:12]}: {made.mined_hash}", as_json)


@app.command()
def fund(
    amount: Annotated[int, typer.Argument(min=1, help="Wei.")],
    run: RunName = "",
    home: HomeOption = None,
    store: StoreOption = None,
    url: Urls = None,
    keystore: Keystore = None,
    as_json: JsonOption = False,
) -> None:
    """Add to a job's budget."""
    from shoal.apps.chain_office import config_of, credit_of, job_of
    from shoal.chain.contracts import shipped

    config = config_of(home, url or [])
    number = job_of(config, credit_of(home, store, run).account.run)
    data = shipped("TrainingRewards")["fundJob"].call(number, 0)
    _send_once("fund", config.rewards, data, amount, home, store, url, keystore, as_json)


@app.command()
def register(
    stake: Annotated[int, typer.Option(min=1, help="Wei.")] = COIN // 100,
    home: HomeOption = None,
    store: StoreOption = None,
    url: Urls = None,
    keystore: Keystore = None,
    as_json: JsonOption = False,
) -> None:
    """Register this node on the chain, with a stake; the hash of its public key is its metadata."""
    from shoal.apps.chain_office import config_of
    from shoal.apps.home import find_home
    from shoal.chain.contracts import shipped
    from shoal.chain.keccak import keccak256
    from shoal.worlds.real.keys import load_or_create_identity

    config = config_of(home, url or [])
    identity = load_or_create_identity(find_home(home).node_key)
    data = shipped("NodeRegistry")["registerNode"].call(keccak256(identity.public), 0)
    _send_once("register", config.registry, data, stake, home, store, url, keystore, as_json)


@app.command()
def payout(
    address: Annotated[str, typer.Argument(help="Where this node wants its pay.")],
    run: Annotated[str, typer.Option("--run", help="The run's id or its beginning.")] = "",
    number: Annotated[int, typer.Option(min=0, help="Higher than of an earlier statement.")] = 0,
    home: HomeOption = None,
) -> None:
    """On a node: the line to give to the organiser, signed with the node's key."""
    from shoal.apps.home import find_home
    from shoal.apps.logs_reading import find_log
    from shoal.chain.payouts import state_payout
    from shoal.worlds.real.keys import load_or_create_identity

    found = find_log(home, None, run, node=True).run
    print(state_payout(load_or_create_identity(find_home(home).node_key), found, address, number))


@app.command()
def pay(
    statement: Annotated[list[str], typer.Argument(help="Lines that nodes made with `shoal chain payout`.")],
    run: Annotated[str, typer.Option("--run", help="The run's id or its beginning.")] = "",
    home: HomeOption = None,
    store: StoreOption = None,
) -> None:
    """On the coordinator: keep where nodes want their pay."""
    from contextlib import closing

    from shoal.apps.chain_office import credit_of
    from shoal.apps.home import find_home
    from shoal.chain.payouts import keep_payout
    from shoal.wire.identity import node_id
    from shoal.worlds.real.sqlstore import SqlLogStore

    found = credit_of(home, store, run).account.run
    with closing(SqlLogStore(store or find_home(home).store_url, create=False)) as opened:
        for text in statement:
            word = keep_payout(opened, found, text)
            print(f"{node_id(word.public)[:12]} is paid at {word.address}")


@app.command()
def settle(
    run: RunName = "",
    once: Annotated[bool, typer.Option(help="Stop when everything is settled.")] = False,
    every_s: Annotated[float, typer.Option(min=0.01, help="How often to look.")] = 1.0,
    home: HomeOption = None,
    store: StoreOption = None,
    url: Urls = None,
    keystore: Keystore = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the log's credit to the chain, epoch by epoch, until it is told to stop."""
    from shoal.apps.chain_office import config_of, credit_of, open_desk, settlement_of
    from shoal.chain.service import run_settlement

    config, credit = config_of(home, url or []), credit_of(home, store, run)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with open_desk(home, config.chain, keystore, store) as desk:
        settlement = settlement_of(desk, config, credit)
        tell = (lambda line: None) if as_json else (lambda line: print(line, flush=True))
        done = run_settlement(settlement, every_s=every_s, until_done=once, stop=stop, tell=tell)
    settled, epochs = (done.settled, done.epochs) if done else (0, 0)
    fields = {"run": credit.account.run, "settled": settled, "epochs": epochs}
    _say(fields, f"{settled} of {epochs} epochs are on the chain", as_json)


@app.command()
def status(
    run: RunName = "",
    home: HomeOption = None,
    store: StoreOption = None,
    url: Urls = None,
    as_json: JsonOption = False,
) -> None:
    """A run's job as the chain has it."""
    from shoal.apps.chain_office import checked_view, config_of, credit_of, job_of
    from shoal.chain.rpc import Rpc

    config = config_of(home, url or [])
    found = credit_of(home, store, run).account.run
    fields = checked_view(Rpc(config.chain.urls), config).job(job_of(config, found))
    if as_json:
        print(json.dumps(fields))
    else:
        print("\n".join(f"{name:16} {value}" for name, value in fields.items()))


@app.command()
def records(
    out: Annotated[Path, typer.Option(help="A folder for one JSON file an epoch.")],
    run: RunName = "",
    home: HomeOption = None,
    store: StoreOption = None,
) -> None:
    """Publish what the roots are made of, with a proof for every address: whoever has a file can claim, or dispute."""
    from shoal.apps.chain_office import config_of, credit_of, records_of
    from shoal.chain.epochs import record_fields

    config = config_of(home, [])
    found = credit_of(home, store, run).account.run
    out.mkdir(parents=True, exist_ok=True)
    made = records_of(home, store, config, found)
    for record in made:
        (out / f"{record.epoch:08}.json").write_text(json.dumps(record_fields(record), indent=1), "utf-8")
    print(f"{len(made)} records in {out}")


@app.command()
def claim(
    record: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An epoch's record.")],
    home: HomeOption = None,
    store: StoreOption = None,
    url: Urls = None,
    keystore: Keystore = None,
    as_json: JsonOption = False,
) -> None:
    """Pay everybody in a record what is due. Anyone may: the money goes to the addresses in it."""
    from shoal.apps.chain_office import config_of
    from shoal.apps.chain_records import claims_in, read_record
    from shoal.chain.contracts import shipped

    config, found = config_of(home, url or []), read_record(record)
    data = shipped("TrainingRewards")["claimMany"].call(found.job, found.epoch, claims_in(found))
    _send_once("claim", config.rewards, data, 0, home, store, url, keystore, as_json)


@app.command()
def check(
    record: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An epoch's record.")],
    dispute: Annotated[
        bool, typer.Option(help="If it is wrong, dispute it on the chain, with the bond.")
    ] = False,
    home: HomeOption = None,
    store: StoreOption = None,
    node: NodeOption = False,
    url: Urls = None,
    keystore: Keystore = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a record and the root on the chain with this machine's copy of the log."""
    from shoal.apps.chain_office import checked_view, config_of, credit_of, wrong_amounts
    from shoal.apps.chain_records import read_record
    from shoal.chain.keccak import keccak256
    from shoal.chain.rpc import Rpc

    config, found = config_of(home, url or []), read_record(record)
    view = checked_view(Rpc(config.chain.urls), config)
    wrong = wrong_amounts(found, credit_of(home, store, found.run, node=node))
    if view.root(found.job, found.epoch) != found.tree().root:
        wrong.append("the root on the chain is not this record's")
    _say(
        {"epoch": found.epoch, "wrong": wrong},
        "; ".join(wrong) or "the record is what the log gives",
        as_json,
    )
    if wrong and dispute:
        evidence = keccak256(bytes.fromhex(found.head))
        data = view.interface["disputeEpoch"].call(found.job, found.epoch, evidence)
        bond = int(view.job(found.job)["bond"])
        _send_once("dispute", config.rewards, data, bond, home, store, url, keystore, as_json)
    if wrong:
        raise typer.Exit(1)


@app.command()
def resolve(
    stands: Annotated[bool, typer.Option("--stands/--falls", help="The arbiter's decision.")],
    run: RunName = "",
    home: HomeOption = None,
    store: StoreOption = None,
    url: Urls = None,
    keystore: Keystore = None,
    as_json: JsonOption = False,
) -> None:
    """As the arbiter: decide the dispute of a run's job."""
    from shoal.apps.chain_office import config_of, credit_of, job_of
    from shoal.chain.contracts import shipped

    config = config_of(home, url or [])
    number = job_of(config, credit_of(home, store, run).account.run)
    data = shipped("TrainingRewards")["resolveDispute"].call(number, stands)
    _send_once("resolve", config.rewards, data, 0, home, store, url, keystore, as_json)


def _send_once(
    what: str,
    to: str,
    data: bytes,
    value: int,
    home: Path | None,
    store: str | None,
    url: list[str] | None,
    keystore: Path | None,
    as_json: bool,
) -> None:
    """One transaction of its own, followed until it is mined."""
    import secrets

    from shoal.apps.chain_office import checked_view, config_of, open_desk
    from shoal.chain.contracts import shipped
    from shoal.chain.deploying import done
    from shoal.chain.sender import Call

    config = config_of(home, url or [])
    interface = shipped("NodeRegistry" if to == config.registry else "TrainingRewards")
    with open_desk(home, config.chain, keystore, store) as desk:
        checked_view(desk.rpc, config)
        key = f"{what}.{secrets.token_hex(8)}"
        call = Call(key=key, to=to, data=data, interface=interface, value=value)
        made = done(desk.sender, desk.outbox, call)
    _say({"transaction": made.mined_hash, "gas": made.gas_used}, f"{what}: {made.mined_hash}", as_json)


def _say(fields: dict[str, Any], line: str, as_json: bool) -> None:
    print(json.dumps(fields) if as_json else line)
