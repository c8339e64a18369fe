"""How search strategies compare: played on recorded tables and on a device; the tables of docs/search.md.

`comparison` lets each play every recorded kernel, `plays` shares that between processes and keeps it, `live` plays on a
device, `regret` says what it means, `comparison_text` tells it.
"""
