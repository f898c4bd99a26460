"""Settling a run's credit on any EVM chain: contracts, transactions, and a service that survives anything.

What signs and hashes is in the extra `chain`; `keccak` says so where it is missing.
"""
