"""Role-wise GRPO as pure functions: episodes -> rows -> advantages -> weights -> metrics.

Flows in: finished episodes and the method table. Flows out: training rows with one advantage each, the weight
each row has in the loss, and the numbers of the step.
Invariant: numpy only; no randomness, no clock, no global state. The clipped loss itself is verl's.
"""
