"""The rollout: one coroutine an episode, driven by a policy and an observation source.

Nothing is imported here, so that a command which needs one module does not pay for the others.
"""
