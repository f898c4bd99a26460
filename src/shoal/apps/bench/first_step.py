"""A node that says when it has made its first step: `shoal join` with nothing to look at.

In flows a ticket on the first line of its input; out flow `ready`, once it could take part, and `step`, once it has
trained one. Invariant: everything between the two is what `shoal join` does, by the same code.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

LOOK_S = 0.005


def main(home: Path) -> None:
    from shoal.apps.joining import Volunteer, prepare_device, take_part, torch_trainer
    from shoal.node.service import NodeService
    from shoal.runlog.entries import Genesis
    from shoal.strategy.recipe import Recipe
    from shoal.wire.ticket import read_ticket
    from shoal.worlds.real import loop
    from shoal.worlds.real.host import RealHost

    async def agree(recipe: Recipe, genesis: Genesis) -> bool:
        return True

    async def watch(service: NodeService, host: RealHost) -> None:
        while True:
            if service.learner is not None and service.learner.progress.steps:
                print("step", flush=True)
                return
            await asyncio.sleep(LOOK_S)

    volunteer = Volunteer(folder=home, name="first", device="cpu")
    device = prepare_device(volunteer)
    print("ready", flush=True)
    ticket = read_ticket(sys.stdin.readline().strip())
    loop.run(take_part(volunteer, ticket, torch_trainer(device, allow_code=False), agree, watch))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
