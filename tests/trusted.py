"""The rows of a journal that count: on a busy machine a host may drift, and what it measured is then measured again."""

from kcg.dataset.journal import IN_DOUBT

TRUSTED = f"NOT EXISTS (SELECT 1 FROM doubts WHERE {IN_DOUBT})"
"""The condition of SQL for rows of measurements that are not doubtful."""
