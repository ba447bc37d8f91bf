"""C++ that is loaded into training processes, compiled for the installed torch."""
