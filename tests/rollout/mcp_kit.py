"""What ACT says and how parameters are written in the tests of MCP servers."""

from rollout_kit import PARAMS, call

from envace.config import parse, to_dict

ACTS = [call("get"), "it is new", call("drop"), "dropped"]


def parsed(**mcp):
    return parse(
        {
            "rollout": {**to_dict(PARAMS), "mcp": mcp},
            "train": {"runs": ["real-1"]},
            "arms": {"real": {"source": "mcp", "roles": ["act"]}},
            "eval": {"policies": ["start"]},
            "tts": {"policy": "start"},
            "fidelity": {"policies": ["start"]},
        }
    )
