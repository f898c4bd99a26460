"""The recipe: everything that defines a run, validated when it is loaded.

In flows YAML, environment variables and `--set a.b=c`; out flows a frozen `Recipe`, or an error that names the
field, what was found and what is allowed. Invariant: a recipe that loads can be trained; what cannot be
combined soundly is refused here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from shoal.aggregate import AGGREGATORS
from shoal.aggregate.base import Guarded
from shoal.audit.spec import AuditSpec
from shoal.base.errors import ShoalError
from shoal.base.section import Section
from shoal.credit.spec import CreditSpec
from shoal.data.spec import DataSpec
from shoal.privacy.spec import PrivacySpec
from shoal.runlog.statements import is_node
from shoal.secagg.spec import MaskingSpec
from shoal.strategy.auditing import unsound_audit
from shoal.strategy.beginning import never_begins
from shoal.strategy.masking import unsound_masking
from shoal.strategy.mistakes import NEXT_STEP, Mistake, Unsound, check_plain, explain, shown
from shoal.strategy.pieces import Strategy, unsound_inside
from shoal.strategy.presets import PRESETS, expand, inner_defaults
from shoal.strategy.private import unsound_privacy
from shoal.strategy.reading import read_yaml
from shoal.training.spec import InnerSpec, ModelSpec
from shoal.wire.signed import digest

ENVIRONMENT_PREFIX = "SHOAL_SET_"
LONGEST_S = 1e9
"""No wait that a recipe names is longer: thirty years."""


class Budget(Section):
    """When a run ends: at the first of these that is reached."""

    rounds: int | None = Field(default=None, ge=1)
    """Updates of the whole fleet: where every arrival is sealed on its own (seal `arrivals`), as many seals as there
    are nodes at work make a round; everywhere else one seal does."""
    tokens: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0, le=LONGEST_S)

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.rounds is None and self.tokens is None and self.seconds is None:
            raise Mistake("give at least one of rounds, tokens, seconds")
        return self


class Membership(Section):
    min_nodes: int = Field(default=1, ge=1, le=100_000)
    """The first round waits for this many ready nodes; later ones go on with whoever is there."""
    max_nodes: int = Field(default=10_000, ge=1, le=10_000)
    """How many nodes may ever join; a ticket that got about must not fill the log."""
    lease_s: float = Field(default=15.0, gt=0, le=LONGEST_S)
    """A node unheard for so long is not waited for. Raise it for flaky links, lower it to lose less time."""
    heartbeat_s: float = Field(default=2.0, gt=0, le=LONGEST_S)
    reconnect_s: float = Field(default=3.0, gt=0, le=LONGEST_S)
    """How long a node whose connection broke may take to come back before it is not waited for."""
    scaling: Literal["none", "batch", "rate"] = "none"
    """What follows the number of live members, where everybody gets equal work: `batch` keeps the fleet's whole batch
    (each member's is batch x usual / live, a quarter to four times itself), `rate` multiplies the outer rate by
    sqrt(live / usual), 1 at most."""
    usual_nodes: int = Field(default=0, ge=0, le=10_000)
    """With how many members batch and rate are meant; 0 for `min_nodes`."""
    allow: tuple[str, ...] = Field(default=(), max_length=10_000)
    """The ids of the nodes that may join; empty for anybody with a ticket."""
    work_bits: int = Field(default=0, ge=0, le=30)
    """Joining takes a proof of about 2 to the power of this many hashes, so that an identity costs something: 20 is a
    second or two, 25 a minute."""
    coordinators: tuple[str, ...] = Field(default=(), max_length=8, exclude_if=lambda named: not named)
    """Control addresses (`host:port`) of all coordinators, where each has a store of its own: then an entry is final
    once a majority of them and of the members present has stored it, and any of them can take over (docs/failover.md).
    Empty for one coordinator, or several on one store."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        for place, node in enumerate(self.allow):
            if not is_node(node):
                raise Mistake(
                    f"found {shown(node)}; allowed: a node's whole id, 40 hexadecimal digits (shoal keys show)",
                    at=f"allow.{place}",
                )
        return self


class Pool(Section):
    """What a run asks for of nodes that were lent to a pool of several runs (`shoal pool join`)."""

    room: int = Field(default=10_000, ge=0, le=10_000)
    """How many of them it wants at once; 0 for none."""
    priority: int = Field(default=0, ge=-1000, le=1000)
    """The higher, the earlier it is served."""
    memory_bytes: int = Field(default=0, ge=0)
    """What a node needs at least."""
    up_bytes_s: float = Field(default=0.0, ge=0)
    """The uplink that it needs at least."""


class IdentitySpec(Section):
    """How coordinator and nodes sign, see docs/keys.md."""

    signatures: Literal["ed25519", "hybrid"] = "ed25519"
    """`hybrid`: claims, seals and attestations carry an ML-DSA-65 signature beside the Ed25519 one, and both must hold;
    about 3.4 kB for each, so that such a run has 400 nodes at most."""


class Retention(Section):
    """Which saved states the coordinator keeps, beside those that are pinned (`shoal ckpt pin`)."""

    last: int = Field(default=2, ge=2)
    """The last so many."""
    every: int = Field(default=0, ge=0)
    """Every so many-th, counted from the first; 0 for none."""
    best: int = Field(default=0, ge=0)
    """The best so many by the metric."""
    metric: Literal["validation", "loss"] = "validation"
    """Of which lower is better."""


class Pieces(Section):
    """An update leaves once, in coded pieces spread over peers, any `k` of `n` of which give it back: for uplinks that
    are slow or fail, which are then not asked for the same bytes again and again."""

    k: int = Field(default=3, ge=1, le=16)
    n: int = Field(default=5, ge=1, le=16)
    when: Literal["always", "planned"] = "always"
    """`planned`: for those nodes only for which the planner says so."""

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.n < self.k:
            raise Mistake(f"{self.n} pieces are fewer than the {self.k} that give an update back", at="n")
        return self


class Storage(Section):
    receipts: int = Field(default=1, ge=1, le=16)
    """How many others must hold an update before it can be sealed."""
    push: Literal["enough", "everybody"] = "enough"
    """Whom a node gives its update to before the seal: as many as must hold it, or, with at most four peers and a brisk
    uplink, everybody, so that a round ends sooner where uplinks have room."""
    snapshot_every: int = Field(default=10, ge=1)
    """Attested rounds between saved states; joiners replay at most so many. (All are attested, but where the seal
    rule has `attest_every`.)"""
    quota_bytes: int = Field(default=20_000_000_000, ge=1)
    """How much disk one process may use for blobs."""
    keep_bytes: int = Field(default=2_000_000_000, ge=0)
    """Blobs that the run no longer needs go only beyond this much; replaying from the beginning needs them."""
    archive: bool = True
    """The coordinator fetches every sealed update, so that it can replay the run from the beginning. Switch it
    off where the coordinator's link is thin: the nodes do not need it."""
    pieces: Pieces | None = None
    """How updates leave in coded pieces, if they do."""
    retention: Retention = Retention()
    """Which saved states the coordinator keeps for good."""


class Start(Section):
    """Where a run begins, if not afresh: at a checkpoint, or at the weighted mean of several."""

    vertices: tuple[str, ...] = Field(min_length=1, max_length=16)
    """Ids of checkpoints (`shoal ckpt list`), each of the same parameters as the model."""
    weights: tuple[float, ...] = ()
    """Their parts in the mean; all alike if none is given."""
    unattested: bool = False
    """Take also checkpoints that no quorum of nodes has signed for."""

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.weights and len(self.weights) != len(self.vertices):
            raise Mistake("give one weight for each vertex, or none")
        if any(weight <= 0 for weight in self.weights):
            raise Mistake("weights must be above 0")
        if len(set(self.vertices)) != len(self.vertices):
            raise Mistake("name each vertex once")
        return self


class Evaluation(Section):
    every: int = Field(default=1, ge=1)
    """Attested rounds between validations, each by one node in turn."""
    batches: int = Field(default=4, ge=1)


class Recipe(Section):
    """One run, as its organiser means it."""

    name: str = Field(default="run", min_length=1, max_length=80)
    seed: int = Field(default=0, ge=0, lt=2**63)
    model: ModelSpec
    data: DataSpec
    inner: InnerSpec
    strategy: Strategy
    budget: Budget
    membership: Membership = Membership()
    pool: Pool = Pool()
    identity: IdentitySpec = IdentitySpec()
    storage: Storage = Storage()
    evaluation: Evaluation = Evaluation()
    credit: CreditSpec = CreditSpec()
    audit: AuditSpec = AuditSpec()
    masking: MaskingSpec = MaskingSpec()
    privacy: PrivacySpec | None = None
    """What nodes promise about the data they train on; null for nothing."""
    start: Start | None = None
    """Begin at checkpoints of earlier runs; null to begin afresh. `shoal ckpt fork` and `merge` write it."""

    @model_validator(mode="after")
    def _leases(self) -> Self:
        if self.membership.heartbeat_s * 2 > self.membership.lease_s:
            raise Unsound(
                f"membership.lease_s: found {self.membership.lease_s:g}; allowed: at least twice heartbeat_s "
                f"({self.membership.heartbeat_s:g}), or every lease lapses"
            )
        return self

    @model_validator(mode="after")
    def _cut_once(self) -> Self:
        folders = self.strategy.digest.folders if self.strategy.digest else 0
        if self.storage.pieces is not None and (folders or self.strategy.merge.kind == "pairs"):
            raise Unsound(
                "storage.pieces needs everybody to take in every update whole: not with strategy.digest.folders, "
                "nor with merge pairs"
            )
        return self

    @model_validator(mode="after")
    def _growth(self) -> Self:
        measured = self.budget.rounds is not None or self.budget.tokens is not None
        if self.strategy.schedule.steps_last is not None and not measured:
            raise Unsound(
                "strategy.schedule.steps_last needs budget.rounds or budget.tokens: by seconds alone nobody "
                "could tell from the log how far the run is"
            )
        if self.strategy.outer.decay != "none" and not measured:
            raise Unsound(
                "strategy.outer.decay needs budget.rounds or budget.tokens: by seconds alone nobody could tell from "
                "the log how far the run is; give one, or set outer.decay to none"
            )
        return self

    @model_validator(mode="after")
    def _outvoted(self) -> Self:
        rule = self.strategy.aggregate.make(AGGREGATORS)
        if isinstance(rule, Guarded) and (why := rule.refusal(self.membership.min_nodes)):
            raise Unsound(f"strategy.aggregate: {why}")
        return self

    @model_validator(mode="after")
    def _audited(self) -> Self:
        if self.audit.on and (why := unsound_audit(self.strategy)):
            raise Unsound(f"audit.rate above 0 {why}; set audit.rate to 0")
        return self

    @model_validator(mode="after")
    def _masked(self) -> Self:
        if self.masking.on and (why := unsound_masking(self.masking, self.strategy, self.audit)):
            raise Unsound(f"masking {why}")
        return self

    @model_validator(mode="after")
    def _voted(self) -> Self:
        if self.membership.coordinators and self.identity.signatures == "hybrid":
            raise Unsound(
                "membership.coordinators with hybrid signatures: votes are signed with Ed25519 alone"
            )
        return self

    @model_validator(mode="after")
    def _private(self) -> Self:
        if why := unsound_privacy(self):
            raise Unsound(f"privacy: {why}")
        return self

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if why := unsound_inside(self.strategy, self.inner):
            raise Unsound(why)
        if self.strategy.region and (why := unsound_inside(self.strategy.region, self.inner)):
            raise Unsound(f"region: {why}")
        return self

    def for_region(self, name: str, min_nodes: int = 1) -> Recipe:
        """The recipe of a region of this run: its own samples, no end of its own, and everything else alike."""
        if self.strategy.region is None:
            raise ShoalError(
                "SH-RECIPE-03", f"run {self.name!r} has no regions", "give its recipe a strategy.region"
            )
        seed = int(digest(f"shoal/region/{self.seed}/{name}".encode())[:15], 16)
        return self.model_copy(
            update={
                "name": f"{self.name} / {name}"[:80],
                "seed": seed,
                "strategy": self.strategy.region,
                "budget": Budget(seconds=LONGEST_S),
                "start": None,
                "membership": self.membership.model_copy(update={"min_nodes": min_nodes}),
            }
        )


def load_recipe(
    path: Path, *, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Recipe:
    """Read a recipe file. `overrides` are `a.b=c`; SHOAL_SET_a__b=c in the environment does the same."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ShoalError("SH-RECIPE-01", f"cannot read {path}: {error}", "check the path") from None
    return parse_recipe(text, overrides=overrides, environment=environment, where=str(path))


@lru_cache(maxsize=64)
def recipe_in_log(text: str) -> Recipe:
    """The recipe that a genesis entry carries: JSON that was validated when the run was founded."""
    where = "the run's recipe"
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ShoalError("SH-RECIPE-01", f"{where} is not JSON: {error}", "ask the organiser") from None
    check_plain(_mapping(values, where), where)
    return _validated(values, where)


def parse_recipe(
    text: str,
    *,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    where: str = "recipe",
) -> Recipe:
    """A recipe from YAML (or JSON) text. Raises SH-RECIPE-01, -02 or -03."""
    values = _mapping(read_yaml(text, where), where)
    for name, setting in _from_environment(environment):
        _override(values, setting, f"{name}:")
    for setting in overrides:
        _override(values, setting, "--set")
    return recipe_from(values, where)


def _mapping(values: object, where: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ShoalError("SH-RECIPE-01", f"{where} is not a mapping of fields", "see docs/recipes.md")
    return values


def _from_environment(environment: Mapping[str, str] | None) -> list[tuple[str, str]]:
    """The variables that override a field, and each as a setting `a.b=c`."""
    found = os.environ if environment is None else environment
    names = sorted(name for name in found if name.startswith(ENVIRONMENT_PREFIX))
    return [(n, f"{n.removeprefix(ENVIRONMENT_PREFIX).replace('__', '.')}={found[n]}") for n in names]


def _override(values: dict[str, Any], setting: str, said: str) -> None:
    """Set one field, wherever that was `said`. Raises SH-RECIPE-02 for what names none."""
    path, equals, text = setting.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ShoalError(
            "SH-RECIPE-02", f"{said} {setting!r} is not of the form a.b=c", "e.g. --set budget.rounds=5"
        )
    at = values
    for key in keys[:-1]:
        inner = at.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ShoalError(
                "SH-RECIPE-02", f"{said} {path}: {key!r} is a value, not a section", "see docs/recipes.md"
            )
        at = inner
    try:
        at[keys[-1]] = read_yaml(text, path)
    except ShoalError:
        at[keys[-1]] = text  # On a command line, what is not YAML is text.


def recipe_from(values: dict[str, Any], where: str = "recipe") -> Recipe:
    """A recipe from plain values. Raises SH-RECIPE-02 or -03."""
    check_plain(values, where)
    strategy = values.get("strategy", {})
    if isinstance(strategy, dict):
        try:
            budget, inner = values.get("budget"), values.get("inner")
            rounds = budget.get("rounds") if isinstance(budget, dict) else None
            batch = inner.get("batch_size") if isinstance(inner, dict) else None
            values = {**values, "strategy": expand(strategy, rounds, batch)}
            values = {**values, **inner_defaults(values["strategy"]["preset"], values.get("inner"))}
        except KeyError as error:
            raise ShoalError(
                "SH-RECIPE-02",
                f"{where}: strategy.preset: found {error.args[0]!r}",
                f"allowed: {', '.join(sorted(PRESETS))}",
            ) from None
    recipe = _validated(values, where)
    if why := never_begins(recipe):
        raise ShoalError("SH-RECIPE-03", f"{where}: {why}", NEXT_STEP)
    return recipe


def _validated(values: dict[str, Any], where: str) -> Recipe:
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise explain(error, Recipe, where) from None
