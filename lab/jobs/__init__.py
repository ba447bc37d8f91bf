"""Training scripts in plain PyTorch, as users write them."""
