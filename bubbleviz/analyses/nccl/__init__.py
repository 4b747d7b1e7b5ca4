"""NCCL: what each rank did in each communication operation, and who waited for whom."""
