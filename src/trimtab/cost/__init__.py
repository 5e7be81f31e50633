"""What work costs: FLOPs and memory of an architecture, communication on a cluster, fitted coefficients."""
