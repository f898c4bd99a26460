"""Training: a model, an inner optimiser and batches become new parameters in one flat vector.

One line per file:
  spec         the recipe's `model:` and `inner:` sections
  initial      (seed, name) -> a parameter's first values, the same bits on every machine
  gpt          the decoder for text, expressible as Llama
  vision       mlp, cnn and resnet for images
  pretrained   any causal language model of `transformers`
  models       spec + manifest -> model, and the one loss function
  flat         a model's parameters and gradients as views of two flat vectors
  optimisers   SGD, AdamW and Muon over those vectors, with portable state
  muon         the orthogonalised steps of hidden matrices
  localstate   an optimiser's state <-> bytes
  schedule     step number -> learning rate factor
  trainer      the local loop: indices in, parameters out
  device       "auto" -> the device to train on
  export       parameters -> a folder that `transformers` loads
"""
