"""Secure aggregation: a group's hub learns the sum of its members' updates, and no single one.

In flow updates as whole numbers and the members' identities; out flow masked updates, and the exact sum of those that
arrived. Invariant: of a member's two secrets (what hides its own update, what pairs it with the others) at most one is
ever given away in a round, whatever the hub says.

One line per file:
  fixed       an update as whole numbers whose sum cannot overflow
  masks       seeds to streams, added to an update or taken off a sum
  shares      a secret in n shares, any t of which give it back
  keys        envelopes that only one member opens, by X25519 and ML-KEM-768 together
  terms       what a round is about: who, how many must answer, how many numbers
  messages    everything that is said, with its limits
  member      one member's side, step by step
  collector   the hub's side, step by step
  unmasking   what the hub has to take off the sum, from the shares it was given
  spec        the recipe's `masking:` section
"""
