"""Rows in the CM2 schema: where they come from, what is checked, how they are stored."""
