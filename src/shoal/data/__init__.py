"""Data: a recipe's source becomes a manifest of hashed shards, and (manifest, seed, counter) becomes a batch.

One line per file:
  spec         the recipe's `data:` section
  sources      a source -> documents or arrays
  tokeniser    text <-> token ids
  shards       arrays <-> the bytes of one blob
  manifest     what a run's genesis says about its data
  prepare      spec -> shards and manifest
  dataset      manifest + blobs -> batches
  assignment   (seed, counter) -> which sample
"""
