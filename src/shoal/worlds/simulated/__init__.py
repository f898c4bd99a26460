"""The simulated world: the same coordinator and node code under a virtual clock, network and disk."""
