"""kvtier under Hugging Face's transformers: prefixes of a DynamicCache, kept and found again.

Stateless; thread-safe. See docs/transformers.md. Imports torch and transformers.
"""

from kvtier.adapters.transformers.model_identity import namespace_of
from kvtier.adapters.transformers.prefix import load_prefix, save_prefix

__all__ = ["load_prefix", "namespace_of", "save_prefix"]
