"""Policies made and served locally: the tiny warm-started model, its tokenizer, batched generation, cards."""
