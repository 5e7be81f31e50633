"""From dataset files to the tensors a rank runs: sample, plan, decode by the plan, pack, ahead of time."""
