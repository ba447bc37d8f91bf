"""What we load into training processes in C++, compiled for the torch that is installed there."""
