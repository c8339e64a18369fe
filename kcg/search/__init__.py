"""How to look: search strategies over an action space, a predictor and a measured budget.

interface.py    what a strategy sees, and what it yields
trials.py       what a strategy has seen so far: cached actions, keys, predictions, observations
strategies.py   the registry of all strategies by name; hand-coded and random
local.py        greedy, ε-greedy, simulated annealing
beams.py        BEAM as tinygrad has it, one that the predictor spares measurements, one over predictions
evolution.py    mutation and crossing of the best
rollouts.py     rollouts of a policy in the environment, ranked by the predictor
mcts.py         Monte Carlo tree search over a graph of schedules
draft.py        candidates from predictions, and what is expected of them as measurements come in
diversity.py    a batch without near duplicates
walks.py        random walks, and schedules as lists of steps that can be changed
calibration.py  a predictor corrected, while searching, by what was measured
bidding.py      several regions searched at once: which gets the next measurements
kin.py          what made a kernel faster is tried on its kin
replay.py       a recorded table in the place of a device
tables.py       the recorded tables of a dataset
"""
