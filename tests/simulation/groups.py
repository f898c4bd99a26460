"""A run whose members are masked groups, in the simulated world.

crowd = Crowd({"a": 5, "b": 5})

async def story() -> None:
    crowd.start()
    await crowd.rounds(4)

crowd.play(story)
"""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from shoal.data.assignment import Indices
from shoal.group.member import GroupMember
from shoal.group.messages import TOKEN_PREFIX, Reply, Said, SayDeal
from shoal.group.service import GroupService
from shoal.node.options import NodeOptions
from shoal.node.session import Invitation
from shoal.secagg.messages import Envelopes, MaskDeal
from shoal.strategy.recipe import Recipe, parse_recipe
from shoal.training.trainer import StepResult
from shoal.wire.signed import parse, sign
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.toy import ToyTrainer

from .harness import TOKEN, _live
from .regions import NEAR, RUN, Country, Machine

SECRET = f"{TOKEN_PREFIX}open sesame"


def masked_recipe(**changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "model": {"kind": "own"},
        "data": {"source": "own", "items": 4096},
        "inner": {"kind": "own", "batch_size": 2},
        "strategy": {
            "preset": "local-sgd",
            "schedule": {"steps": 15, "fragments": 2},
            "seal": {"kind": "all-or-deadline", "deadline_s": 40.0},
            "codec": {"kind": "none"},
        },
        "budget": {"rounds": 1000},
        "membership": {"min_nodes": 2, "lease_s": 4.0, "heartbeat_s": 1.0, "reconnect_s": 2.0},
        "storage": {"snapshot_every": 2},
        "masking": {"members": 4, "wait_s": 10.0},
    }
    return parse_recipe(json.dumps({**values, **changes}), environment={})


class Wrecker(ToyTrainer):
    """Leads far away from where the data point."""

    def step(self, indices: Indices, step_number: int) -> StepResult:
        self.load(self.params() - 2.0)
        return StepResult(loss=1.0, samples=len(indices), tokens=len(indices))


class Spoiler(GroupMember):
    """Deals the first of the others an envelope that does not open."""

    async def _say(self, said: Said) -> Reply:
        return await super()._say(self._spoilt(said) if isinstance(said, SayDeal) else said)

    def _spoilt(self, said: SayDeal) -> SayDeal:
        word = parse(said.word.payload, MaskDeal)
        assert word is not None
        victim = min(node for node in said.envelopes if node != self.identity.node)
        whole = said.envelopes[victim]
        envelopes = {**said.envelopes, victim: Envelopes(bytes(1200), whole.shares)}
        digests = tuple(envelope.digest for envelope in envelopes.values())
        return SayDeal(sign(self.identity, replace(word, envelopes=digests)), envelopes)


class Crowd(Country):
    """Machines by name: `parent`, for each group `hub-a`, and members `a0`, `a1`, ..."""

    def __init__(
        self,
        groups: dict[str, int],
        *,
        seed: int = 1,
        recipe: Recipe | None = None,
        liars: frozenset[str] = frozenset(),
        spoilers: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(groups, seed=seed, recipe=recipe or masked_recipe())
        self._liars, self._spoilers = liars, spoilers
        self.machines = {name: one for name, one in self.machines.items() if not name.startswith("seat-")}
        for machine in self.machines.values():
            machine.link = NEAR

    def group(self, name: str) -> GroupService:
        service = self.machines[f"hub-{name}"].service
        assert isinstance(service, GroupService)
        return service

    def member(self, name: str) -> GroupMember:
        service = self.machines[name].service
        assert isinstance(service, GroupMember)
        return service

    def _start(self, machine: Machine) -> None:
        if machine.name == "parent":
            super()._start(machine)
            return
        machine.lives += 1
        host = machine.host = SimHost(
            self.loop,
            self.network,
            machine.name,
            machine.lives,
            machine.disk,
            node=machine.identity.node,
            link=machine.link,
            inbound=machine.name.startswith("hub-"),
        )
        machine.service = self._service(machine, host)
        machine.task = self.loop.spawn(host.owner, _live(machine.service.run()), machine.name)

    def _service(self, machine: Machine, host: SimHost) -> GroupService | GroupMember:
        options = NodeOptions(step_seconds=0.1, give_up_s=1e9)
        if machine.name.startswith("hub-"):
            invitation = self._invitation("parent", TOKEN, machine)
            return GroupService(
                host, machine.identity, invitation, lambda *_: self._trainer(), options, SECRET
            )
        invitation = self._invitation(f"hub-{machine.region}", SECRET, machine)
        made = Wrecker if machine.name in self._liars else ToyTrainer
        trainer = self._trainer()
        toy = made(trainer.layout, trainer.batch_size)
        kind = Spoiler if machine.name in self._spoilers else GroupMember
        return kind(host, machine.identity, invitation, lambda *_: toy, options)

    def _invitation(self, to: str, token: str, machine: Machine) -> Invitation:
        return Invitation(
            coordinator=self.machines[to].identity.node,
            addresses=(to,),
            run=RUN,
            token=token,
            name=machine.name,
        )
