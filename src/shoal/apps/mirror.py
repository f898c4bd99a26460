"""`shoal mirror RUN`: a run's figures to TensorBoard, Weights & Biases or MLflow, as it goes.

In flow a coordinator's rounds; out flow points in other people's formats. Invariant: a round is written once, in order,
and only when it is sealed; nothing is sent anywhere unless it is asked for: W&B stays offline by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from shoal.apps.api.client import ApiClient, open_client
from shoal.apps.api.models import RunStatus
from shoal.apps.api.records import RoundRecord
from shoal.apps.home import find_home
from shoal.apps.option_groups import JsonOption, say
from shoal.apps.progress import Bar
from shoal.base.errors import ShoalError


class Sink(Protocol):
    """Where points go."""

    def write(self, step: int, values: dict[str, float]) -> None: ...
    def close(self) -> None: ...


def mirror(
    run: Annotated[str, typer.Argument(help="The run's id, or a beginning of it that is its alone.")],
    tensorboard: Annotated[Path | None, typer.Option(help="A folder of event files.")] = None,
    wandb: Annotated[Path | None, typer.Option(help="A folder of offline W&B runs.")] = None,
    mlflow: Annotated[str | None, typer.Option(help="An MLflow tracking address, or a folder.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run is over.")] = False,
    server: Annotated[str | None, typer.Option(help="The coordinator's HTTP address.")] = None,
    token: Annotated[str | None, typer.Option(help="A token; better by file or SHOAL_TOKEN.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="A file with a token.")] = None,
    home: Annotated[Path | None, typer.Option(help="Where this machine's coordinator lies.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run's losses and figures to other tools."""
    wanted = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
    with open_client(server, token, token_file, find_home(home)) as api:
        status = api.run(run)
        sinks = [SINKS[name](str(target), status) for name, target in wanted.items() if target is not None]
        if not sinks:
            raise typer.BadParameter("name at least one of --tensorboard, --wandb, --mlflow")
        try:
            count = copy_rounds(api, status.run, sinks, follow=follow)
        finally:
            for sink in sinks:
                sink.close()
    fields = {
        "run": status.run,
        "rounds": count,
        "to": [name for name in wanted if wanted[name] is not None],
    }
    say(fields, f"{count} rounds written", as_json)


def copy_rounds(api: ApiClient, run: str, sinks: list[Sink], *, follow: bool) -> int:
    """Write every round, and with `follow` those to come; how many."""
    done = 0
    while True:
        with Bar() as bar:
            while (page := api.rounds(run, start=done)).items:
                for record in page.items:
                    for sink in sinks:
                        sink.write(record.steps, values_of(record))
                done += len(page.items)
                bar.at(done, page.total, "rounds")
                if done >= page.total:
                    break
        if not follow or api.run(run).stopped is not None:
            return done
        time.sleep(2.0)


def values_of(record: RoundRecord) -> dict[str, float]:
    """A round as named numbers."""
    seconds = max(1e-3, ((record.sealed_ms or record.opened_ms) - record.opened_ms) / 1000)
    values = {
        "loss/train": record.train_loss,
        "loss/validation": record.validation_loss,
        "round/number": record.round,
        "round/updates": len(record.accepted),
        "round/late": len(record.late),
        "round/rejected": len(record.rejected),
        "round/seconds": seconds,
        "round/tokens_per_s": record.tokens / seconds,
        "round/update_bytes": record.update_bytes,
    }
    return {name: float(value) for name, value in values.items() if value is not None}


class _TensorBoard:
    def __init__(self, target: str, status: RunStatus) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard", error) from None
        self._writer: Any = SummaryWriter(str(Path(target) / status.run[:12]))

    def write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, target: str, status: RunStatus) -> None:
        try:
            import wandb  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise _missing("wandb", error) from None
        Path(target).mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project="shoal", name=status.name, id=status.run[:12], dir=target, mode="offline"
        )

    def write(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    def __init__(self, target: str, status: RunStatus) -> None:
        if "://" not in target:
            # A folder is all that is asked for here; MLflow wants to be told so since it prefers databases.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        try:
            import mlflow  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise _missing("mlflow", error) from None
        self._mlflow: Any = mlflow
        mlflow.set_tracking_uri(target)
        mlflow.set_experiment("shoal")
        mlflow.start_run(run_name=status.name)

    def write(self, step: int, values: dict[str, float]) -> None:
        self._mlflow.log_metrics({name.replace("/", "."): value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


SINKS: dict[str, Callable[[str, RunStatus], Sink]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
    "mlflow": _Mlflow,
}
"""To add one: a class with `write` and `close`, a line here, an option above."""


def _missing(extra: str, error: ImportError) -> ShoalError:
    return ShoalError("SH-TRACE-01", f"{error.name} is not installed", f"pip install 'shoal[{extra}]'")
