"""A few words from a run's latest saved state.

In flow a saved state and a prompt; out flows text. Invariant: bounded work: small models, few tokens, one at a time,
and the most likely token each time, so that the same state says the same.
"""

from __future__ import annotations

import torch

from shoal.apps.api.checkpoints import load_state
from shoal.base.errors import ShoalError
from shoal.coordinator.served import Run
from shoal.data.tokeniser import load_tokeniser
from shoal.runlog.view import SavedState
from shoal.training.flat import load_into
from shoal.training.models import build_model, logits_of

MOST_PARAMETERS = 200_000_000


def sample(served: Run, saved: SavedState, prompt: str, tokens: int) -> str:
    """What the model writes after the prompt. Blocks. Raises SH-RUN-01 where it cannot write."""
    genesis = served.machine.view.genesis
    assert genesis is not None
    tokenizer = genesis.manifest.tokenizer
    if genesis.manifest.kind != "tokens" or tokenizer is None:
        raise ShoalError("SH-RUN-01", "this run's model does not write text", "look at its losses")
    if genesis.layout.numel > MOST_PARAMETERS:
        raise ShoalError("SH-RUN-01", "the model is too large to write here", "export it: shoal run export")
    state, _ = load_state(served, saved)
    model = build_model(served.machine.recipe.model, genesis.manifest, 0)
    load_into(model, state.params)
    tokeniser = load_tokeniser(served.blobs.get(tokenizer))
    ids = [int(i) for i in tokeniser.encode(prompt)] or [0]
    with torch.inference_mode():
        for _ in range(tokens):
            window = torch.tensor([ids[-genesis.manifest.context :]], dtype=torch.long)
            ids.append(int(logits_of(model, window)[0, -1].argmax()))
    return tokeniser.decode(ids[-tokens:])
