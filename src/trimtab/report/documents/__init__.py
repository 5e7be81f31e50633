"""Output of other commands as groups of a report page, one file a kind."""

from trimtab.report.documents.kinds import document_group

__all__ = ["document_group"]
