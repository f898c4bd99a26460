"""What a volunteer is shown before lending a machine.

In flow a run and its ticket; out flow the command to copy, the same as a QR code, and what it will use. Invariant: the
ticket is the only secret here, and it is there to be handed on.
"""

from __future__ import annotations

import io

import segno

from shoal.apps.api.models import Invitation
from shoal.apps.printable import printable
from shoal.base.units import show_bytes
from shoal.coordinator.served import Run

INSTALL = "pip install shoal"
RUNTIME_BYTES = 300_000_000
"""Python and PyTorch, before any model."""


def invitation(served: Run, ticket: str) -> Invitation:
    command = f"shoal join {ticket}"
    return Invitation(
        run=served.machine.run,
        name=printable(served.machine.recipe.name, 80),
        ticket=ticket,
        command=command,
        install=INSTALL,
        qr_svg=_qr(command),
        uses=_uses(served),
    )


def _uses(served: Run) -> list[str]:
    view, recipe = served.machine.view, served.machine.recipe
    genesis = view.genesis
    assert genesis is not None
    parameters = genesis.layout.numel
    return [
        f"It trains a model of {parameters:,} parameters on this machine's processor or GPU, and nothing else.",
        f"It needs about {show_bytes(RUNTIME_BYTES + parameters * 4 * 6)} of memory, and fetches "
        f"{show_bytes(genesis.snapshot_bytes)} to begin.",
        f"It keeps at most {show_bytes(recipe.storage.quota_bytes)} on disk, below its own folder.",
        "It connects to the coordinator and to other members; it needs no open port.",
        "No code of the organiser's runs, unless you add --allow-code.",
        "Ctrl-C ends it, and the same command goes on. --when-idle trains only while nobody uses the machine; "
        "--max-up, --max-down and --monthly bound the traffic.",
    ]


def _qr(text: str) -> str:
    target = io.BytesIO()
    code = segno.make(text, error="l", micro=False)
    code.save(
        target, kind="svg", scale=4, border=2, xmldecl=False, svgns=True, omitsize=True, light="#ffffff"
    )
    return target.getvalue().decode()
