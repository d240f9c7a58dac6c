"""Search spaces to start from, shared by experiments. Each is a function that returns a `tunelab.Space`."""

from search_spaces.text import bert_finetune

__all__ = ["bert_finetune"]
