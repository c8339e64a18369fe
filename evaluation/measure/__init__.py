"""What measuring and verifying cost, what they find and what they miss: benchmarks, fuzzing, provoked faults."""
