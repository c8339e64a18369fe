"""What makes every figure of the documents: experiments, benchmarks and comparisons, by subject."""
