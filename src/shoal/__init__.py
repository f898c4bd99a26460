"""Shoal trains neural networks across whatever machines show up.

For programs: `shoal.join` puts an existing PyTorch loop into a run, `shoal.coordinate` founds one (see
`shoal.apps.library`). Both are looked up when first used, since they bring torch with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.apps.library import coordinate, join

__version__ = "0.1.0"
__all__ = ["coordinate", "join"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from shoal.apps import library

        return getattr(library, name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
