"""The coordinator's HTTP API, for people and tools.

One line per file:
  models    what answers look like
  diary     log entries and seats -> events for the log on stderr, and reasons worth remembering
  status    a run in service -> its status, in words and numbers
  metrics   the same for Prometheus
  desk      what may be asked of a coordinator: submit, stop, rewind, tickets
  problems  errors -> application/problem+json
  guard     bearer token and bounded bodies
  app       the routes
  server    the HTTP server inside the coordinator's event loop
  client    the API from the other side
"""
