"""A settlement in a process of its own, for tests that kill it: `python settle_child.py FOLDER`.

The same loop as `shoal chain settle --once`, without what only finds the log. SHOAL_FAILPOINT says where it dies.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from shoal.base.ids import RunId
from shoal.chain.config import read_config
from shoal.chain.keys import load_account
from shoal.chain.outbox import SqlOutbox
from shoal.chain.rpc import Rpc
from shoal.chain.sender import Sender
from shoal.chain.service import run_settlement
from shoal.chain.settlement import Settlement
from shoal.credit.ledger import Bookkeeper
from shoal.credit.spec import CreditSpec
from shoal.worlds.real.failpoints import reached
from shoal.worlds.real.keys import load_or_create_identity

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    config = read_config(folder)
    outbox = SqlOutbox(f"sqlite:///{folder}/coordinator/store.sqlite")
    sender = Sender(Rpc(config.chain.urls), config.chain, load_account(), outbox, reached)
    (run,) = (RunId(name) for name in config.jobs)
    identity = load_or_create_identity(folder / "coordinator" / "key")
    books = Bookkeeper(outbox, run, CreditSpec(), identity, reached)
    settlement = Settlement(
        run=run, config=config, books=books, outbox=outbox, sender=sender, reached=reached
    )
    done = run_settlement(
        settlement,
        every_s=0.05,
        until_done=True,
        stop=threading.Event(),
        tell=lambda line: print(line, flush=True),
    )
    print("done" if done and done.done else "not done", flush=True)
