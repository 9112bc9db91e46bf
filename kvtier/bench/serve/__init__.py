"""`kvtier bench serve`: an OpenAI-compatible vLLM under one workload, in each mode of kvtier."""
