"""Upstream benchmark harnesses: pinned programs in environments of their own, run as processes."""
