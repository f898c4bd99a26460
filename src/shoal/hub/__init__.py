"""A hub: coordinator of a region's log and member of the parent run, whose training is to let the region train.

One line per file:
  region      the region's run: found it, or find it again; what its members have trained
  following   the region's state, folded from its log, where its members attested it
  learner     the hub's side of an update: what the region did since the last one
  alignment   what a hub must not forget between two claims
  service     a node of the parent run that claims between two attested positions of its region
"""
