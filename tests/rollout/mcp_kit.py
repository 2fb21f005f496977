"""What ACT says and how parameters are written in the tests of MCP servers."""

from rollout_kit import arm_params, call

ACTS = [call("get"), "it is new", call("drop"), "dropped"]


def parsed(**mcp):
    return arm_params("real", {"source": "mcp", "roles": ["act"]}, mcp=mcp)
