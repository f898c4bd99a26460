"""Checkpoints as a graph: what a run's logs say of its saved states, and how runs begin, end and move between places.

In flow logs and blobs; out flow vertices, their states, and folders that others read. Invariant: a vertex is a pure
function of a log; whatever a store adds (pins, imports) never changes one.
"""
