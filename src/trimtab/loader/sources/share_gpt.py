"""LLaVA and ShareGPT: ``{"image": …, "conversations": [{"from": "human", "value": "<image>\\n…"}]}``."""

from trimtab.loader.sources.normal_form import Role

COLUMN = "conversations"
ROLE_KEY = "from"
CONTENT_KEY = "value"
ROLES: dict[str, Role] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "tool": "tool",
}
