"""The recipe's `strategy:` section: one small model for each piece of an algorithm.

In flows what a person wrote; out flow checked values and the pieces they name. Invariant: `kind`, `rule` and
their parameters are checked against the registries, so adding a piece needs no change here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, Self, TypeVar

from pydantic import ConfigDict, Field, model_validator

from shoal.aggregate import AGGREGATORS, OUTER_OPTIMIZERS
from shoal.aggregate.base import Guarded, Preparing
from shoal.base.section import Section
from shoal.codec import CODECS, UNEQUAL_CODECS
from shoal.codec.dense import DENSE
from shoal.codec.sizing import bytes_per_value
from shoal.replica.fold import FoldRules
from shoal.runlog.rules import MAX_CHOICES
from shoal.runlog.sharding import MAX_FOLDERS, MAX_SHARDS
from shoal.runlog.weights import WEIGHTS
from shoal.strategy.merge import MERGE_RULES, Elastic, MergeRule, Mix, Pairs
from shoal.strategy.mistakes import Mistake, Unsound, shown
from shoal.strategy.presets import DEFAULT
from shoal.strategy.seal_rules import MAX_DEADLINE_S, SEAL_RULES, SealRule
from shoal.training.spec import InnerSpec, OwnInnerSpec, SgdSpec

T = TypeVar("T")


class Piece(Section):
    """A registered piece: its name under `kind`, everything else its parameters."""

    model_config = ConfigDict(extra="allow")
    kind: str

    def params(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})

    def make(self, registry: Mapping[str, Callable[..., T]]) -> T:
        """The piece itself. Raises `Mistake`, in words, for an unknown name or parameter or a wrong value."""
        if self.kind not in registry:
            raise Mistake(f"found {self.kind!r}; allowed: {', '.join(sorted(registry))}", at="kind")
        factory, params = registry[self.kind], self.params()
        allowed = _parameters(factory)
        for name, value in params.items():
            if name not in allowed:
                known = ", ".join(allowed) or "none"
                raise Mistake(f"{self.kind} has no such parameter; allowed: {known}", at=name)
            _check_value(name, value, allowed[name])
        try:
            return factory(**params)
        except (ValueError, TypeError, ArithmeticError) as error:
            found = ", ".join(f"{name}={shown(value)}" for name, value in params.items())
            raise Mistake(f"{error} (found {found})") from None


@lru_cache(maxsize=256)
def _parameters(factory: Callable[..., object]) -> dict[str, Any]:
    """A piece's parameters and their types."""
    signature = inspect.signature(factory, eval_str=True)
    return {name: parameter.annotation for name, parameter in signature.parameters.items()}


_TYPES: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a finite number"),
    str: ((str,), "text"),
}


def _check_value(name: str, value: object, wanted: Any) -> None:
    kinds, words = _TYPES[wanted]
    fits = isinstance(value, kinds) and (wanted is bool or not isinstance(value, bool))
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        raise Mistake(f"found {shown(value)}; allowed: a plain value, {words}", at=name)


_OVERSHOOTING = (
    "a scaled value says more than there was, and what error feedback remembers of it would grow every time"
)


def _overshoots(codec: Piece) -> bool:
    """Whether a codec's values may be longer than what it was given, for the sake of their mean over many rounds."""
    return getattr(codec.make(CODECS), "scaled", False)


class CodecChoice(Piece):
    """A codec that the planner may choose instead of the recipe's own."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if _overshoots(self):
            raise Mistake(f"{_OVERSHOOTING}; set it to false", at="scaled")
        return self


class CodecPiece(Piece):
    error_feedback: bool = False
    """Remember what the codec loses and add it to the next update."""
    feedback_decay: float = Field(default=1.0, ge=0.0, le=1.0)
    """How much of what was lost is remembered; below 1, old losses fade instead of arriving late."""
    warmup_rounds: int = Field(default=0, ge=0, le=100_000)
    """The updates of so many first rounds are sent as they are, by no codec, and no digest is made of them."""
    choices: tuple[CodecChoice, ...] = Field(
        default=(), max_length=MAX_CHOICES, exclude_if=lambda named: not named
    )
    """Other codecs, each of fewer bytes than the one before, that an aware planner takes where bytes would make rounds
    longer than their steps are; it says so in the plan. Needs error_feedback."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.make(CODECS)
        if self.feedback_decay != 1.0 and not self.error_feedback:
            raise Mistake("only has a meaning with error_feedback: true", at="feedback_decay")
        if self.error_feedback and _overshoots(self):
            raise Mistake(f"{_OVERSHOOTING}; set scaled or error_feedback to false", at="scaled")
        return self


class SealPiece(Piece):
    @model_validator(mode="after")
    def _check(self) -> Self:
        self.make(SEAL_RULES)
        return self


class AggregatePiece(Piece):
    @model_validator(mode="after")
    def _check(self) -> Self:
        self.make(AGGREGATORS)
        return self


class DigestPiece(Piece):
    """A codec that every aggregate goes through, so bytes must not depend on the machine. Each node does so itself,
    with a residual in the state; or, with `folders`, a few nodes fold each shard for everybody, and keep the
    residual."""

    folders: int = Field(default=0, ge=0, le=MAX_FOLDERS)
    """How many nodes fold each shard for everybody: 3 or 5 among strangers, 1 among friends. 0: everybody folds
    everything."""
    shards: int = Field(default=64, ge=1, le=MAX_SHARDS)
    """Into about how many shards the state is cut for them; at least as many as there are nodes, or some have none."""
    when: Literal["auto", "always"] = "auto"
    """`auto`: in rounds in which the updates are more bytes than their digests, and more than a round hides."""
    deadline_s: float = Field(default=30.0, gt=0, le=MAX_DEADLINE_S)
    """How long folders may take. What they have not folded by then, everybody folds."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind in UNEQUAL_CODECS:
            raise Mistake(f"{self.kind} encodes to other bytes on another machine", at="kind")
        if self.folders and self.kind not in DENSE:
            raise Mistake(
                f"{self.kind} is packed by the machine's zlib, and folders must agree to the byte; with folders, "
                f"allowed: {', '.join(sorted(DENSE))}",
                at="kind",
            )
        if _overshoots(self):
            raise Mistake(f"{_OVERSHOOTING}; set it to false", at="scaled")
        return self


class OuterPiece(Piece):
    warmup_rounds: int = Field(default=0, ge=0, le=100_000)
    """In so many first rounds the outer rate rises, evenly."""
    decay: Literal["none", "cosine", "linear"] = "none"
    """How the outer rate falls from then on, over the run's budget of rounds or tokens."""
    floor: float = Field(default=0.1, gt=0, le=1)
    """Where it ends, as a fraction of the rate."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.make(OUTER_OPTIMIZERS)
        return self


class MergePiece(Piece):
    @model_validator(mode="after")
    def _check(self) -> Self:
        self.make(MERGE_RULES)
        return self


class Schedule(Section):
    """What a node does between claims."""

    steps: int = Field(default=30, ge=1, le=100_000)
    """Local steps a round. Raise it when the link is slow against a step; early training wants it low."""
    steps_last: int | None = Field(default=None, ge=1, le=100_000)
    """Local steps a round at the end of the budget, if they are to grow (or shrink) on the way."""
    growth: Literal["geometric", "linear"] = "geometric"
    """How `steps` becomes `steps_last`."""
    warmup_rounds: int = Field(default=0, ge=0, le=100_000)
    """So many rounds of a single step each come first: in sync, while the model changes fastest."""
    seconds: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)
    """Train for so long instead, `steps` at most and one at least: slow machines then do less, not later."""
    hide: float | None = Field(default=None, gt=0, lt=1)
    """Take more steps than `steps` where it needs them to keep what is not training (sending, fetching, folding) within
    this share of a round, as measured. Needs a budget of tokens or seconds; one of rounds fixes the steps."""
    overlap: int = Field(default=0, ge=0, le=100_000)
    """So many further steps are trained while updates travel; needs a merge rule that keeps local progress.
    (`true` for as many as `steps`.)"""
    fragments: int = Field(default=1, ge=1, le=1024)
    """Into how many parts the state is cut."""
    order: Literal["all", "rotate"] = "all"
    """`rotate`: each round syncs one fragment only, in turn; a round then sends a part of the bytes, and what was
    trained in the other fragments stays until theirs."""

    @model_validator(mode="before")
    @classmethod
    def _read_overlap(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("overlap"), bool):
            steps = values.get("steps", cls.model_fields["steps"].default)
            return {**values, "overlap": steps if values["overlap"] else 0}
        return values


class Weighing(Section):
    """What an update counts for."""

    kind: str = "samples"
    """`samples`, or `tokens-squared-per-step`: tokens times tokens a step, for machines with batches of their own."""
    discount: float = Field(default=0.0, ge=0, le=8)
    """An update that comes `age` rounds late counts for 1 / (1 + age) ** discount of its weight."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind not in WEIGHTS:
            raise Mistake(f"found {self.kind!r}; allowed: {', '.join(sorted(WEIGHTS))}", at="kind")
        return self

    def discounted(self, weight: int, age: int) -> int:
        return max(1, int(weight / (1 + age) ** self.discount))


class HealthWeights(Section):
    """What each part of a node's health counts for."""

    speed: float = Field(default=0.4, ge=0, le=1)
    network: float = Field(default=0.3, ge=0, le=1)
    quality: float = Field(default=0.2, ge=0, le=1)
    uptime: float = Field(default=0.1, ge=0, le=1)

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.speed + self.network + self.quality + self.uptime <= 0:
            raise Mistake("at least one of speed, network, quality, uptime must be above 0")
        return self


class Planning(Section):
    """Who is given how much work, and how long a round waits, see docs/network.md."""

    kind: Literal["naive", "aware"] = "naive"
    """`naive`: the same for everybody. `aware`: by what was measured of each device and line; `schedule.steps` is then
    where it begins, and `schedule.overlap` (if above 0) a leave to train while updates travel."""
    utilisation: float = Field(default=0.95, gt=0, lt=1)
    """The share of their time in which devices should train; rounds are as long as that takes, and no longer.
    (`schedule.hide` says the same the other way round, and wins.)"""
    enough: float = Field(default=0.8, gt=0, le=1)
    """A round that has this share of its work waits only a little for the rest."""
    health: HealthWeights = HealthWeights()


class Strategy(Section):
    """An algorithm as a composition."""

    preset: str = DEFAULT
    schedule: Schedule = Schedule()
    codec: CodecPiece
    seal: SealPiece
    aggregate: AggregatePiece
    outer: OuterPiece
    merge: MergePiece
    digest: DigestPiece | None = None
    """A codec on the way back too: the outer optimiser steps by what it leaves of the aggregate, and what it loses is
    added to the next."""
    weights: Weighing = Weighing()
    planner: Planning = Planning()
    region: Strategy | None = None
    """How the members of a region train, where this run's own members are the hubs of regions. `schedule.steps` are
    then those of all of a region's members together, and as many more as `overlap` may count."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if why := unsound(self):
            raise Unsound(why)
        return self

    def fold_rules(self) -> FoldRules:
        return FoldRules(
            self.codec.make(CODECS),
            self.aggregate.make(AGGREGATORS),
            self.outer.make(OUTER_OPTIMIZERS),
            self.codec.warmup_rounds,
            self.digest.make(CODECS) if self.digest and not self.digest.folders else None,
            self.digest.make(CODECS) if self.digest and self.digest.folders else None,
            tuple(choice.make(CODECS) for choice in self.codec.choices),
        )

    @property
    def digest_deadline_s(self) -> float:
        return self.digest.deadline_s if self.digest else 0.0

    def seal_rule(self) -> SealRule:
        return self.seal.make(SEAL_RULES)

    def merge_rule(self) -> MergeRule:
        return self.merge.make(MERGE_RULES)


def unsound(strategy: Strategy) -> str:
    """Why these pieces cannot work together; "" if they can."""
    schedule, rule, merge = strategy.schedule, strategy.seal_rule(), strategy.merge_rule()
    if schedule.overlap and not merge.keeps_progress:
        return (
            f"overlap with merge {strategy.merge.kind!r}: what is trained while updates travel would be thrown "
            "away; use merge mix or add-delta, or overlap 0"
        )
    if schedule.order == "rotate" and schedule.fragments == 1:
        return "order rotate with one fragment: there is nothing to take turns; raise fragments, or use order all"
    if schedule.order == "rotate" and rule.most_stale:
        return (
            f"order rotate with seal {strategy.seal.kind!r} that takes late updates: by then it is another "
            "fragment's turn; set the seal's staleness to 0, or use order all"
        )
    if schedule.seconds is not None and schedule.seconds >= rule.deadline_s:
        return (
            f"schedule.seconds {schedule.seconds:g} is not below the seal's deadline_s {rule.deadline_s:g}: "
            "nobody would be in time"
        )
    frozen = _frozen_after(strategy)
    if frozen and strategy.codec.kind != "none" and strategy.codec.warmup_rounds < frozen:
        return (
            f"outer {strategy.outer.kind} learns its variance in {frozen} first rounds, of which "
            f"{strategy.codec.warmup_rounds} are sent as they are: it would learn what the codec makes of them; set "
            f"codec.warmup_rounds to {frozen}"
        )
    if rule.most_stale and isinstance(strategy.outer.make(OUTER_OPTIMIZERS), Preparing):
        return (
            f"outer {strategy.outer.kind} with seal {strategy.seal.kind!r} that takes late updates: they would bring "
            "an old momentum with them; set the seal's staleness to 0"
        )
    if schedule.hide is not None and schedule.seconds is not None:
        return "schedule.hide with seconds: the time decides how many steps there are; use one of them"
    if schedule.seconds is not None and schedule.steps_last is not None:
        return "schedule.seconds with steps_last: the time decides how many steps there are; use one of them"
    if strategy.planner.kind == "aware" and schedule.seconds is not None:
        return (
            "planner aware with schedule.seconds: it decides how long a round is; set planner.kind to naive"
        )
    if strategy.planner.kind == "aware" and steps_outside(strategy):
        return (
            f"planner aware with outer {strategy.outer.kind!r}, which takes the real step: it wants one gradient of "
            "everybody, and not more of some; set planner.kind to naive"
        )
    if isinstance(merge, Mix | Elastic) and steps_outside(strategy):
        return (
            f"merge {strategy.merge.kind!r} with outer {strategy.outer.kind!r}, which takes the real step: local "
            "models would keep a part of every raw gradient; use merge replace"
        )
    if strategy.aggregate.kind == "heloco" and "momentum" not in strategy.outer.make(OUTER_OPTIMIZERS).slots:
        return (
            f"aggregate 'heloco' corrects by the outer optimiser's momentum, and outer {strategy.outer.kind!r} has "
            "none: it would be the plain mean; use outer nesterov, or aggregate mean"
        )
    if why := _unsound_choices(strategy):
        return f"codec.choices {why}"
    pairs = _unsound_pairs(strategy) if isinstance(merge, Pairs) else ""
    return pairs or _unsound_region(strategy) or _unsound_folders(strategy)


def _unsound_choices(strategy: Strategy) -> str:
    """Why the planner cannot choose among these codecs; "" if it can, or does not."""
    codec, rules = strategy.codec, strategy.fold_rules()
    if not codec.choices:
        return ""
    if strategy.planner.kind != "aware":
        return "with planner naive: nobody would choose; set planner.kind to aware"
    if not codec.error_feedback:
        return "without codec.error_feedback: what a smaller codec leaves out would be lost; set it to true"
    names = [codec.kind, *(choice.kind for choice in codec.choices)]
    sizes = [bytes_per_value(one) for one in (rules.codec, *rules.choices)]
    for name, size, before in zip(names[1:], sizes[1:], sizes, strict=False):
        if size >= before:
            return (
                f"{name!r} has {8 * size:.3g} bits a value, not fewer than the {8 * before:.3g} of the one before it; "
                "name them from the largest to the smallest"
            )
    return ""


def _unsound_folders(strategy: Strategy) -> str:
    """Why nodes cannot fold for one another; "" if they can, or do not."""
    folders = strategy.digest.folders if strategy.digest else 0
    if folders and strategy.seal_rule().most_stale:
        return (
            f"digest.folders with seal {strategy.seal.kind!r} that takes late updates: they may be cut otherwise than "
            "the round they come in; set the seal's staleness to 0, or digest.folders to 0"
        )
    if folders and isinstance(strategy.merge_rule(), Pairs):
        return "digest.folders with merge 'pairs': partners need each other's updates whole; set digest.folders to 0"
    if folders and strategy.region is not None:
        return "digest.folders with regions: hubs are few, and send updates whole; set digest.folders to 0"
    if folders == 1 and isinstance(strategy.aggregate.make(AGGREGATORS), Guarded):
        return (
            f"digest.folders 1 with aggregate {strategy.aggregate.kind!r}: it guards against members that lie, and the "
            "one folder of a shard could say what it likes; set digest.folders to 3"
        )
    return ""


def _unsound_region(strategy: Strategy) -> str:
    """Why a run of regions cannot have these; "" if it can."""
    region = strategy.region
    if region is None:
        return ""
    if region.schedule.fragments != strategy.schedule.fragments:
        return (
            f"region.schedule.fragments {region.schedule.fragments} are not schedule.fragments "
            f"{strategy.schedule.fragments}: a region's state is its parent's; set both to the same"
        )
    if region.schedule.steps_last is not None or region.outer.decay != "none":
        return "region with steps_last or outer.decay: a region has no budget of its own to measure them by"
    if steps_outside(strategy):
        return (
            f"region with outer {strategy.outer.kind!r}, which takes the real step: a hub sends what its region has "
            "trained, and not a gradient; use an outer sgd or nesterov"
        )
    return ""


def _unsound_pairs(strategy: Strategy) -> str:
    """Why nodes cannot meet in pairs; "" if they can."""
    outer = strategy.outer.make(OUTER_OPTIMIZERS)
    if strategy.codec.error_feedback:
        return (
            "merge 'pairs' with codec.error_feedback: an update is the whole way from the last common state, so that "
            "what the codec lost of one is in the next anyway, and would count twice; set error_feedback to false"
        )
    if strategy.seal_rule().most_stale:
        return (
            f"merge 'pairs' with seal {strategy.seal.kind!r} that takes late updates: they lead from an older common "
            "state than the one they would be taken from; set the seal's staleness to 0"
        )
    if strategy.schedule.order == "rotate":
        return "merge 'pairs' with order rotate: a pair would share one fragment of its models; use order all"
    if isinstance(outer, Preparing) or steps_outside(strategy):
        return (
            f"merge 'pairs' with outer {strategy.outer.kind!r}, which takes the real step: between its rounds nodes "
            "would go on by raw gradients; use an outer sgd or nesterov"
        )
    return ""


def _frozen_after(strategy: Strategy) -> int:
    """The rounds in which an outer Adam learns a variance that it then keeps; 0 if it never stops."""
    schedule = strategy.schedule
    steps: int = getattr(strategy.outer.make(OUTER_OPTIMIZERS), "freeze_after", 0)
    return steps * (schedule.fragments if schedule.order == "rotate" else 1)


def steps_outside(strategy: Strategy) -> bool:
    """Whether the outer optimiser takes the real step, and wants gradients: an Adam or signs at every step. (An Adam
    over many local steps is another thing, and takes those of any inner optimiser.)"""
    every_step = strategy.schedule.steps == 1 or _frozen_after(strategy) > 0
    return strategy.outer.kind in ("onebit-adam", "sign") or (strategy.outer.kind == "adam" and every_step)


def unsound_inside(strategy: Strategy, inner: InnerSpec) -> str:
    """Why an inner optimiser does not go with these pieces; "" if it does."""
    if not steps_outside(strategy):
        return ""
    schedule = strategy.schedule
    why = f"outer {strategy.outer.kind!r} takes the real step, and has to be sent a gradient: "
    if schedule.steps > 1 or (schedule.steps_last or 1) > 1 or schedule.overlap:
        return why + "set schedule.steps to 1, without steps_last and overlap"
    if isinstance(inner, OwnInnerSpec) or (isinstance(inner, SgdSpec) and _is_plain(inner)):
        return ""
    return why + "use inner {kind: sgd, lr: 1.0} without momentum, weight_decay, warmup_steps and schedule"


def _is_plain(inner: SgdSpec) -> bool:
    """Whether a step is the gradient itself, but for its clipping."""
    steady = inner.schedule == "constant" and not inner.warmup_steps
    return inner.lr == 1.0 and not inner.momentum and not inner.weight_decay and steady
