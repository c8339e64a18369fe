"""How search strategies compare: replayed on recorded tables and on a device; the tables of docs/search.md.

`comparison` replays each on every recorded kernel, `replays` shares that between processes and keeps it, `on_device`
runs on a device, `regret` says what it means, `comparison_text` tells it.
"""
