"""EnvACE: reinforcement learning for tool-using agents that rehearse the world instead of querying one."""

__version__ = "0.1.0"
