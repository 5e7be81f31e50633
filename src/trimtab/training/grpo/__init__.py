"""GRPO on the balanced spine: rollout, inference and update, each with a plan of its own. Start at ``loop.py``."""
