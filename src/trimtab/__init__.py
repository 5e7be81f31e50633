"""trimtab keeps every rank of a vision-language-model training step equally busy, without changing the loss.

Importing this package loads neither torch nor transformers: planning is pure functions on numpy columns.
"""

__version__ = "0.1.0.dev0"
