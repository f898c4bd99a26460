"""The coordinator's HTTP API and what the dashboard lives on, for people and tools.

One line per file:
  models       what answers look like: runs, nodes, requests
  records      the same for a run's past: rounds, events, checkpoints, credit
  sentences    entries and seats -> what happened, in words
  past         the latest records of a kind, older ones packed
  chronicle    entries -> rounds, events and checkpoints, bounded
  diary        follows every run: the chronicle, events for the log on stderr, reasons worth remembering
  status       a run in service -> its status, in words and numbers
  live         what changed -> one frame of deltas for everybody who watches
  watching     the WebSocket, from its token to its end
  metrics      numbers for Prometheus
  desk         what may be asked of a coordinator: submit, pause, change, stop, rewind, tickets
  forms        recipes before they are runs: schema, complaints, estimate
  uploads      datasets that people send; `images` makes arrays of a CSV
  checkpoints  saved states: graph, export; `branches` all runs' graph; `sampling` lets one write
  earnings     balances from the ledger
  inviting     what a volunteer is shown
  problems     errors -> application/problem+json
  tokens       three scopes, each with a secret
  guard        bearer tokens and bounded bodies
  headers      security headers and ETags
  examples     examples in the description
  reading, asking   the routes
  site         the dashboard's files
  app          all of it together
  server       the HTTP server inside the coordinator's event loop
  client       the API from the other side
"""
