"""From what was measured to what is planned, every decision with its reason: docs/network.md."""
