"""The same work on many machines, on Dask: hosts that compile and measure, a scheduler, and the driver of a run."""
