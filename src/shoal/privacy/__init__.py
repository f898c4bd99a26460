"""Differential privacy: what a run promises (`spec`), what that costs (`accounting`), and secret noise (`source`)."""
