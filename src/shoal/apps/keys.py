"""`shoal keys show | rotate | revoke`: which key speaks for this machine, and how another comes to.

In flow key files, a ticket or a run; out flow lines for people, JSON for tools. Invariant: a key is never replaced but
by its own word, which is durable beside the new key before this command says so; logs hear of it when the node joins,
or the coordinator starts, the next time.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.apps.home import find_home
from shoal.apps.printable import printable
from shoal.base.errors import ChannelClosed, ShoalError

if TYPE_CHECKING:
    from shoal.wire.identity import Identity

app = typer.Typer(no_args_is_help=True, help="This machine's keys: show, replace and revoke them.")

HomeOption = Annotated[Path | None, typer.Option("--home", help="Where keys lie (default ~/.shoal).")]
Coordinator = Annotated[bool, typer.Option("--coordinator", help="The coordinator's key, not the node's.")]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON value.")]


@app.command()
def show(home: HomeOption = None, coordinator: Coordinator = False, as_json: Json = False) -> None:
    """Who this machine is, and which key speaks for it."""
    from shoal.worlds.real.keys import load_or_create_identity

    _say(load_or_create_identity(_key(home, coordinator)), "speaks with", as_json)


@app.command()
def rotate(
    home: HomeOption = None,
    coordinator: Coordinator = False,
    compromised: Annotated[
        bool, typer.Option("--compromised", help="The old key is in wrong hands: nothing it signed counts.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a new key speak for this machine; the old one signs that it does."""
    from shoal.worlds.real.keys import rotate_identity

    identity = rotate_identity(_key(home, coordinator), revokes=compromised)
    _say(identity, "will speak, from its next start on, with", as_json)


@app.command()
def revoke(
    ticket: Annotated[
        str | None, typer.Option(help="As the holder: the run, by its ticket; this node's keys are revoked.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="As the organiser: the run, with --node.")] = None,
    node: Annotated[str | None, typer.Option(help="Its name, its id, or the beginning of that.")] = None,
    reason: Annotated[str, typer.Option(help="Why; it goes into the log.")] = "revoked",
    server: Annotated[
        str | None, typer.Option(help="The coordinator's API; default: this machine's.")
    ] = None,
    token: Annotated[str | None, typer.Option(help="Its admin token; default: $SHOAL_TOKEN.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="A file with the token.")] = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """Have a node's keys count for nothing in a run any more, for good: it cannot come back under them."""
    if ticket is not None and run is None and node is None:
        answer = asyncio.run(_revoke_own(find_home(home).node_key, ticket, reason))
    elif run is not None and node is not None and ticket is None:
        from shoal.apps.api.client import as_sent, open_client

        with open_client(server, token, token_file, find_home(home)) as api:
            answer = as_sent(api.revoke(run, node, reason))
    else:
        raise typer.BadParameter("give --ticket (your own node), or --run and --node (as its organiser)")
    text = f"the keys of node {answer['node']} are revoked in run {answer['run'][:12]}: {answer['reason']}"
    print(json.dumps(answer) if as_json else printable(text, 2000))


async def _revoke_own(key: Path, ticket: str, reason: str) -> dict[str, Any]:
    """Tell the coordinator, with the key itself. Raises what it refuses with, SH-JOIN-05 if it does not answer."""
    import tempfile

    from shoal.node.session import Invitation, open_session
    from shoal.wire.ticket import read_ticket
    from shoal.worlds.real.disk import FileDisk
    from shoal.worlds.real.host import RealHost
    from shoal.worlds.real.keys import load_or_create_identity

    identity, read = load_or_create_identity(key), read_ticket(ticket)
    invitation = Invitation(
        coordinator=read.coordinator,
        addresses=read.addresses,
        run=read.run,
        token=read.token,
        revoke=reason[:200],
    )
    with tempfile.TemporaryDirectory(prefix="shoal-keys-") as folder:
        async with RealHost(identity, FileDisk(Path(folder))) as host:
            try:
                await open_session(host, identity, invitation, blob_address="", length=0, probe=True)
            except ChannelClosed as error:
                where = ", ".join(read.addresses)
                raise ShoalError("SH-JOIN-05", f"{where} does not answer: {error}", "try again") from None
            except ShoalError as refusal:
                if refusal.code != "SH-KEY-04":  # Which is what was asked for.
                    raise
    return {"run": read.run, "node": identity.node, "reason": reason}


def _key(home: Path | None, coordinator: bool) -> Path:
    found = find_home(home)
    return found.coordinator_key if coordinator else found.node_key


def _say(identity: Identity, words: str, as_json: bool) -> None:
    from shoal.wire.signed import digest

    fields = {
        "node": identity.node,
        "key": digest(identity.public)[:40],
        "hybrid_key": digest(identity.hybrid.public)[:40],
        "rotations": len(identity.line),
    }
    text = f"{fields['node']} {words} key {fields['key']} (replaced {fields['rotations']} times)"
    print(json.dumps(fields) if as_json else text)
