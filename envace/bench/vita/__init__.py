"""VitaBench: delivery, in-store, travel and cross-domain service tasks, judged by an LLM against rubrics."""
