"""A step on a described cluster, through the production planner; every figure it gives is simulated."""
