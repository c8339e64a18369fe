"""How to look: search strategies over a space of schedules, a predictor and a measured budget.

problem.py      what a strategy sees, what it yields, and what it has seen so far
strategies.py   the registry of all strategies by name; local searches, evolution
beam.py         beams over predictions and over measurements
mcts.py         Monte Carlo tree search over a graph of schedules
moves.py        random walks, changes of single steps, and batches without near duplicates
calibration.py  a predictor corrected, while searching, by what was measured
allocation.py   several kernels searched at once: which gets the next measurements, and what similar kernels found
workers.py      searches that think in processes of their own
replay.py       a recorded table in the place of a device, and those of a dataset
"""
