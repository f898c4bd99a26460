"""Two people train one model with a loop of their own: own module, own data, own optimiser.

Everything between the two marks is an ordinary PyTorch program; what puts it into a run is `shoal.join`, the
`for` over it and `run.report`. Here the organiser and both participants are one script on one machine; elsewhere
each participant runs `take_part` with the ticket that the organiser sends them.

    python examples/own_loop.py
"""

from __future__ import annotations

import math
import tempfile
import threading
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import shoal

ROUNDS, STEPS, BATCH = 8, 25, 32


# --- an ordinary PyTorch program -------------------------------------------------------------------------


class Waves(nn.Module):
    """From a point in the plane to the height of a wave there."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        heights: torch.Tensor = self.layers(points)
        return heights


def make_data(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    points = torch.rand(samples, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    heights = torch.sin(math.pi * points[:, :1]) * torch.cos(math.pi * points[:, 1:])
    return points, heights


points, heights = make_data(4096, seed=1)
held_out_points, held_out_heights = make_data(512, seed=2)


def take_part(ticket: str, name: str, home: Path) -> float:
    model = Waves()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

    def validation_loss() -> float:
        return F.mse_loss(model(held_out_points), held_out_heights).item()

    with shoal.join(ticket, model, optimizer, evaluate=validation_loss, name=name, home=home) as run:
        for step, indices in enumerate(run):  # was: for step, indices in enumerate(loader)
            loss = F.mse_loss(model(points[indices]), heights[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.report(loss)
            if step % STEPS == 0:
                print(f"{name}: step {step:3}, loss {loss.item():.4f}", flush=True)
    with torch.no_grad():
        return validation_loss()


# --- the organiser ---------------------------------------------------------------------------------------


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    recipe = {
        "name": "waves",
        "budget": {"rounds": ROUNDS},
        "membership": {"min_nodes": 2, "heartbeat_s": 0.5, "lease_s": 5},
        "strategy": {"preset": "local-sgd", "schedule": {"steps": STEPS}},
    }
    with tempfile.TemporaryDirectory(prefix="shoal-own-loop-") as folder:
        home = Path(folder)
        first = Waves()
        with torch.no_grad():
            before = F.mse_loss(first(held_out_points), held_out_heights).item()
        with shoal.coordinate(
            first, items=len(points), batch_size=BATCH, recipe=recipe, home=home / "organiser"
        ) as run:
            print(f"ticket: {run.ticket[:40]}...", flush=True)
            losses: dict[str, float] = {}

            def person(name: str) -> None:
                losses[name] = take_part(run.ticket, name, home / name)

            people = [threading.Thread(target=person, args=(name,)) for name in ("ada", "grace")]
            for thread in people:
                thread.start()
            for thread in people:
                thread.join()
    print(f"validation loss: {before:.4f} before, " + ", ".join(f"{n} {x:.4f}" for n, x in losses.items()))
    if len(losses) < 2 or max(losses.values()) > before / 2:
        raise SystemExit("the loss did not fall by half")


if __name__ == "__main__":
    main()
