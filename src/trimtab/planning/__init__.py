"""Pure functions: arrays in, plan out. No clock, files, environment or hidden randomness."""
