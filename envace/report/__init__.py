"""What a person looks at: one episode step by step, and the report over a whole run."""
