"""The recorded datasets: their figures, and what reading and writing them costs."""
