"""Chat messages: ``{"messages": [{"role", "content"}], "images": […], "videos": […]}``.

A content is text with ``<image>`` and ``<video>`` tags, or OpenAI-style parts, whose visuals carry their own path or
URL or take the next entry of the lists.
"""

from trimtab.loader.sources.normal_form import Role

COLUMN = "messages"
ROLE_KEY = "role"
CONTENT_KEY = "content"
ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
