"""Shoal trains neural networks across whatever machines show up."""

__version__ = "0.1.0"
