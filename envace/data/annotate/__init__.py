"""From raw tool-calling dialogues to rows with checklists, by way of a language model behind any
OpenAI-compatible server."""
