"""Joins the collective calls of a script with NCCL's operators and the kernels that ran them."""
