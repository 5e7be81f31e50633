"""verl's RL datasets: ``{"prompt": [{"role", "content"}], "images": [{"bytes"}], "reward_model": …, "extra_info": …}``.

What is not prompt or media stays in the conversation's extras.
"""

from trimtab.loader.sources.normal_form import Role

COLUMN = "prompt"
ROLE_KEY = "role"
CONTENT_KEY = "content"
ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
