"""Audits of claims: who re-runs what, what a verdict means, and what standings come to. See `docs/audits.md`."""
