"""Which node a person means.

In flow a view and what somebody wrote; out flows a node's id. Invariant: nobody is taken for another: what fits several
nodes, or none, is refused with those that there are.
"""

from __future__ import annotations

from shoal.apps.printable import printable
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId
from shoal.runlog.statements import is_node
from shoal.runlog.view import RunView


def find_member(view: RunView, who: str) -> NodeId:
    """The one member of this name, or whose id begins so; or the id of a node that has not joined. Raises
    SH-CREDIT-02."""
    known = sorted({*view.members, *view.bans})
    named = [node for node, member in sorted(view.members.items()) if member.name == who]
    found = named if len(named) == 1 else [node for node in known if node.startswith(who)]
    if len(found) == 1:
        return found[0]
    if is_node(who):
        return NodeId(who)
    shown = ", ".join(
        f"{printable(member.name)} {node[:12]}" for node, member in list(view.members.items())[:20]
    )
    what = f"{len(found) or len(named)} nodes" if found or named else "no node"
    raise ShoalError(
        "SH-CREDIT-02",
        f"{what} of run {view.run[:12]} with the name {printable(who)!r}, or an id that begins so",
        f"name one of: {shown}" if shown else "give the node's whole id",
    )
