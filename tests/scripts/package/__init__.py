"""A program that is a package: `python -m package`, `python -m package.inner.train`."""
