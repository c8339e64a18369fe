"""How to look: search strategies over an action space, a predictor and a measured budget.

interface.py    what a strategy sees, and what it yields
trials.py       what a strategy has seen so far: cached actions, keys, predictions, observations
strategies.py   hand-coded, random, greedy, beam, and the registry of all by name
mcts.py         Monte Carlo tree search over a graph of schedules
calibration.py  a predictor corrected, while searching, by what was measured
budget.py       which region of a workload gets the next batch
replay.py       a recorded table in the place of a device
"""
