"""Role-wise GRPO as pure functions: episodes -> rows -> advantages -> weights -> metrics.

Flows in: finished episodes and the method table. Flows out: training rows with one advantage each, the weight
each row has in the loss, and the numbers of the step.
Invariant: numpy only; no clock, no global state, no chance but from a seed that is passed in. The clipped
loss itself is verl's.
"""
