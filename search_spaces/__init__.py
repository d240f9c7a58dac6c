"""Search spaces to start from, shared by experiments. Each is a function that returns a `tunelab.Space`."""

from search_spaces.text import bert_finetune
from search_spaces.vision import small_conv_net

__all__ = ["bert_finetune", "small_conv_net"]
