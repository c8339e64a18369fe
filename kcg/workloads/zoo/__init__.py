"""Workload families, one module each; `kcg.workloads.family` says what is in one."""
