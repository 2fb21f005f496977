"""A checkpoint served over the OpenAI chat completions protocol, tool calls included."""
