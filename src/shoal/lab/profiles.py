"""Lines as people have them, by name. In flows a name; out flows a `LinkSpec`. Invariant: values are typical
published ones of such lines, one way from the host to the core of the network; `docs/lab.md` lists them."""

from __future__ import annotations

from pathlib import Path

import yaml

from shoal.lab.fleet import LinkSpec
from shoal.lab.quantities import Mistake

FILE = Path(__file__).parent / "profiles.yaml"


def _load() -> dict[str, LinkSpec]:
    values = yaml.safe_load(FILE.read_text("utf-8"))
    return {name: LinkSpec.model_validate(spec) for name, spec in values.items()}


PROFILES: dict[str, LinkSpec] = _load()


def profile(name: str) -> LinkSpec:
    """Raises `Mistake` for a name that there is not."""
    if name not in PROFILES:
        raise Mistake(f"found {name!r}; allowed: {', '.join(PROFILES)}")
    return PROFILES[name]
