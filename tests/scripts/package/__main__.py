"""`python -m package`."""

from .work import batches

if __name__ == "__main__":
    batches()
