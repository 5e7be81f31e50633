"""Why a URL cannot be read, and what helps."""

from __future__ import annotations

from collections.abc import Iterator

_PIP_NAMES = {"libarchive": "libarchive-c", "distributed": "distributed dask", "smbclient": "smbprotocol"}
"""Packages that are not called as what is imported from them."""


def url_problem(error: BaseException) -> str:
    """The reason in brackets and the remedy, to stand behind "cannot be read".

    Args:
        error: of fsspec, or of the library it reads a protocol with; its own text is often the address alone.
    """
    causes = list(_causes(error))
    missing = next((cause for cause in causes if isinstance(cause, ModuleNotFoundError) and cause.name), None)
    if missing is not None and missing.name is not None:
        module = missing.name.partition(".")[0]
        return f"(its protocol needs {module}, which is not installed); pip install {_PIP_NAMES.get(module, module)}"
    told = next((cause for cause in causes if isinstance(cause, ImportError)), None)
    if told is not None:
        return f"(its protocol is not installed: {told}); install what it asks for"
    if "Protocol not known" in str(error):
        return f"({error}); check the address, or install the fsspec package of its protocol"
    return f"({type(causes[-1]).__name__}: {causes[-1]}); check the address, and what its protocol needs"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
