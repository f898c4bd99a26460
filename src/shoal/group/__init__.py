"""A masked group: members whose updates nobody sees, and a hub that takes part in a run with their sum.

One line per file:
  messages   what members and hub say to each other, around the rounds of `secagg`
  desk       the hub's door: who is here, and what each member is told
  sums       the hub's side of an update: the mean of what its members trained
  service    a node of the run whose training is a masked round of its group
  answering  a member's words in one round, each made once
  member     a member at work: train, mask, and help to take the masks off the sum
"""
