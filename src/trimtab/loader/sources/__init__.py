"""Datasets in the forms people have, read into one normal form."""

from trimtab.loader.sources.dataset import Dataset, open_dataset
from trimtab.loader.sources.normal_form import Conversation, Message, Part, VisualSource

__all__ = ["Conversation", "Dataset", "Message", "Part", "VisualSource", "open_dataset"]
