"""YAML read with a library that every environment of the project has; a key given twice is an error."""

from __future__ import annotations

import yaml

from envace.types import JSON


class _OneOfEachKey(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[JSON, JSON]:
        given = set[str]()
        for key, _ in node.value:
            if str(key.value) in given:
                problem = f"the key {key.value} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            given.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> JSON:
    """The value of a YAML text. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_OneOfEachKey)
