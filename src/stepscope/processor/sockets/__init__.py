"""The daemon's sockets: the listener, the connections to notify, and how often to poll."""
