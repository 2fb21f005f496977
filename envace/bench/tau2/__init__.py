"""tau²-Bench through its own program: simulated customers, tool calls against a database, graded by its end
state.
"""
