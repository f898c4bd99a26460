"""The lab: real, unmodified programs in network namespaces that are joined by emulated links.

In flows a fleet file; out flow running programs and a report that says how exact the emulation was. Invariant:
whatever ends the process that started a lab, everything of the lab ends with it.
"""

from shoal.lab.fleet import Fleet
from shoal.lab.keeping import Process
from shoal.lab.lab import Lab
from shoal.lab.library import find_fleet, load_fleet, parse_fleet
from shoal.lab.links import Network, fleet_to_links, timeline
from shoal.lab.report import Report

__all__ = [
    "Fleet",
    "Lab",
    "Network",
    "Process",
    "Report",
    "find_fleet",
    "fleet_to_links",
    "load_fleet",
    "parse_fleet",
    "timeline",
]
