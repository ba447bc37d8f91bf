"""What the processor knows and decides, without I/O: packets go in, instructions come out."""
